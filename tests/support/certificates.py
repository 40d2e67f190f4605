"""Certificates of a test's own making: an authority, a server at 127.0.0.1, and a client."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dev.servers.server import HOST

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path

    @property
    def both(self) -> str:
        """Key and certificate in one text, as Kafka wants them."""
        return self.key.read_text() + self.certificate.read_text()


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Signs certificates; its own is what clients are told to trust."""

    folder: Path
    certificate: Path
    _key: ec.EllipticCurvePrivateKey
    _name: x509.Name

    @classmethod
    def made(cls, folder: Path, name: str = "authority") -> "Authority":
        """Return a new one, with its certificate in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        key, subject, path = _new_key(), _subject(name), folder / f"{name}.pem"
        found = _signed(subject, subject, key, key, x509.BasicConstraints(ca=True, path_length=None))
        path.write_bytes(found.public_bytes(serialization.Encoding.PEM))
        return cls(folder=folder, certificate=path, _key=key, _name=subject)

    def sign(self, name: str, password: str = "") -> Signed:
        """Return a new certificate by this name, good for a server at 127.0.0.1; its key has the password, if any."""
        key, certificate, path = _new_key(), self.folder / f"{name}.crt", self.folder / f"{name}.key"
        at_home = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        found = _signed(_subject(name), self._name, key, self._key, at_home)
        certificate.write_bytes(found.public_bytes(serialization.Encoding.PEM))
        path.touch(mode=0o600)
        plain = serialization.NoEncryption()
        locked = serialization.BestAvailableEncryption(password.encode()) if password else plain
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
        return Signed(certificate=certificate, key=path)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - DAY,
        not_valid_after=now + DAY,
    )
    return builder.add_extension(extension, critical=issuer == subject).sign(by, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())
