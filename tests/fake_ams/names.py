"""The DN text by which authn looks up a binding (not the slash form of GOCDB and of the message receiver)."""

from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

_EMAIL, _DC = NameOID.EMAIL_ADDRESS, NameOID.DOMAIN_COMPONENT
_ORDER: tuple[tuple[str, ObjectIdentifier], ...] = (
    ("E", _EMAIL),
    ("SERIALNUMBER", NameOID.SERIAL_NUMBER),
    ("CN", NameOID.COMMON_NAME),
    ("OU", NameOID.ORGANIZATIONAL_UNIT_NAME),
    ("O", NameOID.ORGANIZATION_NAME),
    ("POSTALCODE", NameOID.POSTAL_CODE),
    ("STREET", NameOID.STREET_ADDRESS),
    ("L", NameOID.LOCALITY_NAME),
    ("ST", NameOID.STATE_OR_PROVINCE_NAME),
    ("C", NameOID.COUNTRY_NAME),
    ("DC", _DC),
)
_SINGLE = {NameOID.SERIAL_NUMBER, NameOID.COMMON_NAME}  # Go's pkix.Name keeps only the last of these
_ESCAPED = set(',+"\\<>;')


def authn_dn(name: x509.Name) -> str:
    """The canonical form: fixed order, repeated types joined by `+`, unknown types dropped.

    Spec: argo-api-authn eb23120, measured.
    """
    parts = []
    for label, oid in _ORDER:
        values = [str(part.value) for part in name.get_attributes_for_oid(oid)]
        if oid in _SINGLE:
            values = values[-1:]
        if oid not in (_EMAIL, _DC):
            values = [_escape(value) for value in values]
        if values:
            parts.append("+".join(f"{label}={value}" for value in values))
    return ",".join(parts)


def _escape(value: str) -> str:
    text = "".join("\\" + letter if letter in _ESCAPED else letter for letter in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text
