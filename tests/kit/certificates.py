"""Make certificates for one test."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_MAY_SIGN = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def make_authority(*, host: str = "shop.example") -> tuple[str, str]:
    """Return a new authority's certificate, and a key with one for 127.0.0.1, ::1 and a host, all as PEM."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orderpost test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _unsigned(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_MAY_SIGN, critical=True)
        .add_extension(key_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = map(ipaddress.ip_address, ("127.0.0.1", "::1"))
    names = x509.SubjectAlternativeName([x509.DNSName(host), *map(x509.IPAddress, addresses)])
    server = (
        _unsigned(subject, issuer, server_key)
        .add_extension(names, critical=False)
        # Python 3.13 and later want it.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    chain = server.public_bytes(pem) + authority.public_bytes(pem)
    return authority.public_bytes(pem).decode(), (key + chain).decode()


def make_server_context(*, folder: Path, host: str = "shop.example") -> tuple[ssl.SSLContext, Path]:
    """Return the TLS context of a server on 127.0.0.1, and the file of the authority that clients trust."""
    authority, server = make_authority(host=host)
    trusted, own = folder / "authority.pem", folder / "server.pem"
    trusted.write_text(authority)
    own.write_text(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    return context, trusted


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(hours=1),
        not_valid_after=now + dt.timedelta(days=1),
    )
