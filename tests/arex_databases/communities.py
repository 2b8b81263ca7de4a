"""Who uses the sample site: communities, their users, and the queues they meet."""

from dataclasses import dataclass
from typing import Final

ARCREST: Final = ("org.nordugrid.arcrest", "https://ce01.example.org:443/arex")
EMIES: Final = ("org.ogf.glue.emies.activitycreation", "https://ce01.example.org:443/arex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A batch queue and the `type:value` that its worker nodes carry, if any."""

    name: str
    benchmark: str | None
    prefix: str
    """Of its worker nodes' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who submits, with which FQANs (main one first) and attributes mapped from token claims."""

    name: str
    fqans: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    local: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Community:
    """A VO (the empty one = none) with its share of the jobs."""

    vo: str
    share: int
    users: tuple[User, ...]
    queues: tuple[Queue, ...]
    interfaces: tuple[tuple[str, str], ...]
    job_names: tuple[str, ...]
    projects: tuple[str, ...]
    cpus: tuple[int, ...]
    storage: str


GRID: Final = Queue(name="grid", benchmark="HEPscore23:11.9", prefix="wn")
LONG: Final = Queue(name="long", benchmark="HEPSPEC:10.5", prefix="wn-long")
OLD: Final = Queue(name="old", benchmark="Si2k:2625", prefix="node")
PLAIN: Final = Queue(name="plain", benchmark="HEPSPEC:1.0", prefix="c")
BARE: Final = Queue(name="bare", benchmark=None, prefix="bare")

_ATLAS_PILOT: Final = (
    "/atlas/Role=pilot/Capability=NULL",
    "/atlas/Role=NULL/Capability=NULL",
    "/atlas/lcg1/Role=NULL/Capability=NULL",
)
_ATLAS_PRODUCTION: Final = (
    "/atlas/Role=production/Capability=NULL",
    "/atlas/Role=NULL/Capability=NULL",
    "/atlas/lcg1/Role=NULL/Capability=NULL",
    "/atlas/no/Role=NULL/Capability=NULL",
)

COMMUNITIES: Final = (
    Community(
        vo="atlas",
        share=46,
        users=(
            User(
                name="/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=atlpilo1/CN=614260/CN=Robot: ATLAS Pilot1",
                fqans=_ATLAS_PILOT,
                local="atlplt01:atlas",
            ),
            User(
                name="/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=ddmadmin/CN=531497/CN=Robot: ATLAS Data Management",
                fqans=_ATLAS_PRODUCTION,
                local="atlprd01:atlas",
            ),
            User(
                name="https://atlas-auth.cern.ch/7dee38a3-6ab8-4fe2-9e4c-58039c21d817",
                fqans=("/atlas/production", "/atlas"),
                claims=(("issuer", "https://atlas-auth.cern.ch/"), ("group", "/atlas/production")),
                local="atlprd02:atlas",
            ),
        ),
        queues=(GRID, LONG),
        interfaces=(ARCREST,),
        job_names=("ATLAS_pilot", "mc23_13p6TeV.601229.evgen", "data25_reprocessing"),
        projects=("atlas-t2",),
        cpus=(1, 8, 8),
        storage="srm://srm.example.org/atlas/atlasdatadisk/rucio/mc23",
    ),
    Community(
        vo="cms",
        share=20,
        users=(
            User(
                name="/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=cmspilot/CN=707420/CN=Robot: CMS pilot",
                fqans=("/cms/Role=pilot/Capability=NULL", "/cms/Role=NULL/Capability=NULL", "/cms/uscms"),
                local="cmsplt:cms",
            ),
            User(
                name="/C=SE/O=Lunds universitet/CN=\\xC3\\x85sa Str\\xC3\\xB6m",
                fqans=("/cms", "/cms/dcms"),
                local="cms042:cms",
            ),
        ),
        queues=(GRID, OLD),
        interfaces=(ARCREST, EMIES),
        job_names=("cms_pilot", "CRAB3_ttbar_2026"),
        projects=("cms-t2", "nordic cms"),
        cpus=(1, 4, 8),
        storage="davs://se.example.org:443/cms/store/user",
    ),
    Community(
        vo="belle",
        share=12,
        users=(
            User(
                name="/C=JP/O=KEK/OU=CRC/CN=Robot: BelleDIRAC Pilot - KEK",
                fqans=("/belle/Role=production/Capability=NULL", "/belle/Role=NULL/Capability=NULL"),
                local="belle",
            ),
            User(name="/C=IE/O=Grid-Ireland/OU=tcd.ie/CN=Sean O'Neil", fqans=("/belle",), local="belle7:belle"),
        ),
        queues=(LONG, PLAIN),
        interfaces=(EMIES,),
        job_names=("DIRAC_belle_pilot", "BtoKstarGamma #3 (50%)"),
        projects=(),
        cpus=(1,),
        storage="https://dav.example.org/belle/DATA",
    ),
    Community(
        vo="ops",
        share=7,
        users=(
            User(
                name="/DC=EU/DC=EGI/C=GR/O=Robots/O=Greek Research/CN=Robot:argo-egi@grnet.gr",
                fqans=("/ops/Role=NULL/Capability=NULL", "/ops/NGI/Role=NULL/Capability=NULL"),
                local="ops001:ops",
            ),
        ),
        queues=(GRID, BARE),
        interfaces=(ARCREST, EMIES),
        job_names=("org.nordugrid.ARC-CE-submit",),
        projects=(),
        cpus=(1,),
        storage="https://dav.example.org/ops",
    ),
    Community(
        vo="",
        share=15,
        users=(
            User(name="/DC=org/DC=terena/DC=tcs/C=NO/O=Universitetet i Oslo/CN=Kari Nordmann", local="kari:users"),
            User(
                name="https://wlcg.cloud.cnaf.infn.it/a1b98335-9649-4fb0-961d-5a49ce108d49",
                claims=(
                    ("issuer", "https://wlcg.cloud.cnaf.infn.it/"),
                    ("subject", "a1b98335-9649-4fb0-961d-5a49ce108d49"),
                ),
                local="token12:users",
            ),
        ),
        queues=(PLAIN, BARE, OLD),
        interfaces=(ARCREST, EMIES),
        job_names=("run.sh", "fit & plot", "my job"),
        projects=("nn9999k", "uio"),
        cpus=(1, 2, 4, 8),
        storage="https://data.example.org/home/kari",
    ),
)
