"""The Lua scripts of events.transports.redis."""

from __future__ import annotations

#: Join the consumers of a group. Return their number. KEYS: members. ARGV: member, seconds.
JOIN = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
"""
#: Take a lease that is free or ours. Return whether it is ours now. KEYS: lease. ARGV: member, milliseconds.
TAKE = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
#: Renew a lease that has not expired. Return whether it was ours. KEYS: lease. ARGV: member, milliseconds.
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
#: Give a lease back. KEYS: lease. ARGV: member.
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
#: Read entries if the lease is ours. Return only the first ones if all exceed the bytes.
#: KEYS: lease, stream. ARGV: member, group, owner, id, count, bytes.
READ = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {0, {}, 0} end
local answer = redis.call(
    'XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
if not answer then return {1, {}, 0} end
local entries, size = answer[1][2], 0
for i, entry in ipairs(entries) do
    for _, field in ipairs(entry[2] or {}) do size = size + #field end
    if size > tonumber(ARGV[6]) and i > 1 then return {1, {unpack(entries, 1, i - 1)}, 1} end
end
return {1, entries, 0}
"""
