"""The TLS side of a session: our certificate, and trust in exactly what the configuration names.

`requests` takes the name of one bundle or directory; revocation lists, and a context without the
strict X.509 of Python 3.13, are ours.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

from publisher.model.errors import CredentialError
from publisher.transports.base import Credentials
from publisher.transports.credentials.revocation import AUTHORITIES, RevocationLists
from publisher.transports.http.sockets import Bounded


class _TlsSocket(Bounded, ssl.SSLSocket):
    """Of HTTPS. OpenSSL's calls (a handshake, a record) each end within the timeout set before."""

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands, and see whether the certificate was revoked. Raises: ssl.SSLError."""
        super().do_handshake(block)
        context = self.context
        certificate = self.getpeercert(binary_form=True)
        lists = context.lists if isinstance(context, _TrustingContext) else None
        if lists is not None and certificate is not None:
            lists.check(certificate, context.get_ca_certs(binary_form=True))

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """What is there; a reset connection is closed, which Python 3.11 leaves open before TLS."""
        try:
            return super().recv(buflen, flags)
        except ConnectionResetError:
            self.close()
            raise


class _TrustingContext(ssl.SSLContext):
    """With the revocation lists that are looked at, if any."""

    lists: RevocationLists | None = None

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **more: Any) -> ssl.SSLSocket:
        """Shake hands, and go on, within the limits of the socket below."""
        wrapped: ssl.SSLSocket
        if not isinstance(sock, Bounded):
            return super().wrap_socket(sock, *arguments, **more)
        sock.limit()
        wrapped = super().wrap_socket(sock, *arguments, **more)
        if isinstance(wrapped, Bounded):
            wrapped.left_s = sock.left_s
        return wrapped


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.2 or newer, names checked, our certificate shown, and trust in exactly what `ca` names.

    Not `ssl.create_default_context`, whose strict X.509 (Python 3.13) older grid CAs fail.

    Raises: CredentialError
    """
    context = trusting_context(credentials)
    try:
        context.load_cert_chain(credentials.certificate, credentials.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise CredentialError(
            f"cannot use the certificate {credentials.certificate} with the key {credentials.key} "
            f"for TLS: {error}; both must be readable PEM, unencrypted, and a pair"
        ) from error
    return context


def trusting_context(credentials: Credentials) -> ssl.SSLContext:
    """As `client_context`, without our certificate: to look only. Raises: CredentialError."""
    context = _TrustingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # RFC 9110 section 4.3.4: a name counts where it is an alternative name
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = _TlsSocket
    _trust(context, credentials)
    return context


def trust_described(credentials: Credentials) -> str:
    """What `ca` names, for messages."""
    return "the system's CA store" if credentials.ca is None else str(credentials.ca)


def _trust(context: _TrustingContext, credentials: Credentials) -> None:
    if credentials.crl == "require":
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if credentials.ca is None:
        # Not `load_default_certs`, which follows SSL_CERT_FILE and SSL_CERT_DIR of the environment
        system = ssl.get_default_verify_paths()
        file, directory = Path(system.openssl_cafile), Path(system.openssl_capath)
        if file.is_file():
            context.load_verify_locations(cafile=file)
        if directory.is_dir():
            context.load_verify_locations(capath=directory)
        return
    try:
        if credentials.ca.is_dir():
            # OpenSSL takes any directory and finds nothing in it later; say so for an empty one.
            if not any(AUTHORITIES.fullmatch(entry.name) for entry in credentials.ca.iterdir()):
                raise CredentialError(
                    f"the CA directory {credentials.ca} holds no hashed certificates (<hash>.0); "
                    "install the IGTF bundle, "
                    "or set `credentials: ca` to a bundle file or to `system`"
                )
            context.load_verify_locations(capath=credentials.ca)
            counted = credentials.crl == "if-present"
            context.lists = RevocationLists(credentials.ca) if counted else None
        else:
            context.load_verify_locations(cafile=credentials.ca)
    except OSError as error:  # ssl.SSLError is one
        raise CredentialError(
            f"cannot read the trusted CAs in {credentials.ca}: {error.strerror or error}; "
            "correct `credentials: ca` (a hashed directory, a bundle file, or `system`)"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # OpenSSL would ask on the terminal
