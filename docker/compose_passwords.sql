-- For docker/compose.yaml alone: the passwords that its containers know.
ALTER ROLE orderpost_app PASSWORD 'orderpost';
ALTER ROLE orderpost_follower PASSWORD 'orderpost';
