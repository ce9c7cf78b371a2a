"""The doctor: every ailment gives its own finding, with what to do, and nothing is changed by looking."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr
from sqlalchemy import text

from postroom.accounts.account import AccountStatus, NewAccount, add_account, get_account, list_accounts
from postroom.accounts.doctor import MIB, examine_installation, judge_archive, judge_home, open_secrets
from postroom.accounts.enrolment import Enrolment
from postroom.accounts.history import claim_reader
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind, record_trouble
from postroom.archive.shards.ownership import Ownership
from postroom.db import connect
from postroom.domain.checkups import Check, CheckVerdict, Finding
from postroom.domain.clock import SystemClock
from postroom.domain.errors import Fatal
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.mailboxes.gmail.methods import LABELS, PROFILES, READ, ProfileName
from postroom.settings import ArchiveSettings, DatabaseSettings, Settings, TelemetrySettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.gateway import QuotaLimits
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.vault import KEY_FILE, Vault
from tests.support.databases import install
from tests.support.logins import logged_in, stored
from tests.support.mail import OWNER, mailbox
from tests.support.web_servers import answering, page

CLOCK = SystemClock()
PLENTY = 100_000 * MIB
NO_UNITS = QuotaLimits(replace(PROFILES[ProfileName.LEGACY], units_per_minute=0))

pytestmark = pytest.mark.req("PL-8")


@dataclass(frozen=True)
class Patient:
    """An installation with one account, at whatever address it is given."""

    home: Path

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home, database=DatabaseSettings(synchronous="normal"))

    async def has_account(self, api_base: str) -> None:
        install(self.home)
        database = await connect(self.settings.database_url, self.settings.database)
        await database.write(lambda tx: add_account(tx, NewAccount(OWNER, api_base), CLOCK.now()))
        await database.close()

    async def has_token(self, api_base: str, token: str) -> None:
        GrantStore(Vault(self.home)).save(StaticGrant(email=OWNER, api_base=api_base, access_token=token))
        await self.has_account(api_base)

    async def findings(self, free: int = PLENTY) -> list[Finding]:
        found = examine_installation(self.settings, Vault(self.home), CLOCK, free=lambda folder: free)
        return [finding async for finding in found]

    async def complaints(self, free: int = PLENTY) -> list[Finding]:
        return [finding for finding in await self.findings(free) if finding.verdict is not CheckVerdict.OK]

    async def complaint(self) -> Finding:
        (only,) = await self.complaints()
        assert only.verdict is CheckVerdict.FAILED
        return only


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    tmp_path.chmod(0o700)
    return Patient(tmp_path)


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(1)) as running:
        yield running


async def test_a_fresh_installation_is_well_and_looking_leaves_no_trace(patient: Patient) -> None:
    assert await patient.complaints() == []
    assert list(patient.home.iterdir()) == []


async def test_an_account_that_is_well_is_looked_at_from_its_name_to_its_quota(patient: Patient, sim: GmailSim) -> None:
    await logged_in(sim, patient.home, CLOCK)
    await patient.has_account(sim.url)
    findings = await patient.findings()
    assert [finding.check for finding in findings if finding.verdict is CheckVerdict.OK] == [
        *(Check.HOME, Check.DISK, Check.DATABASE, Check.ARCHIVE, Check.VAULT, Check.EXTRAS, Check.READER),
        *(Check.DNS, Check.NETWORK, Check.CLOCK, Check.SERVICE, Check.AUTH, Check.SCOPE, Check.QUOTA),
    ]
    assert len(findings) == 14


async def test_a_home_open_to_others_is_found(patient: Patient) -> None:
    patient.home.chmod(0o755)
    finding = await patient.complaint()
    assert (finding.check, finding.remedy) == (Check.HOME, f"Run `chmod 700 {patient.home}`.")
    patient.home.chmod(0o700)
    assert judge_home(patient.home).verdict is CheckVerdict.OK


async def test_a_nearly_full_disk_is_found_before_it_is_full(patient: Patient) -> None:
    (scarce,) = await patient.complaints(free=1_000 * MIB)
    assert (scarce.check, scarce.verdict) == (Check.DISK, CheckVerdict.WARNING)
    (full,) = await patient.complaints(free=10 * MIB)
    assert (full.check, full.verdict) == (Check.DISK, CheckVerdict.FAILED)
    assert full.text.startswith("10 MiB are free")


def test_an_archive_that_cannot_be_where_the_settings_put_it_is_found(patient: Patient) -> None:
    misplaced = patient.settings.model_copy(update={"archive": ArchiveSettings(store="database")})
    finding = judge_archive(misplaced)
    assert finding.verdict is CheckVerdict.FAILED
    assert "needs PostgreSQL" in finding.text


@pytest.mark.parametrize(
    ("command", "verdict"), [("postroom up", CheckVerdict.OK), ("postroom switchboard", CheckVerdict.WARNING)]
)
def test_whoever_has_the_archive_is_named_and_one_that_keeps_sync_from_it_is_warned_of(
    patient: Patient, command: str, verdict: CheckVerdict
) -> None:
    root = patient.home / "archive"
    owner = Ownership(root, command)
    finding = judge_archive(patient.settings)
    assert (finding.verdict, f"`{command}` (process {os.getpid()}" in finding.text) == (verdict, True)
    owner.release()
    assert "no process has them open" in judge_archive(patient.settings).text
    killed = {"pid": 2**22 + 1, "host": socket.gethostname(), "purpose": command, "since": "long ago"}
    (root / "owner.lock").write_text(json.dumps(killed))
    assert "no process has them open" in judge_archive(patient.settings).text


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2hunter2@127.0.0.1:1/postroom", "mysql://me:hunter2hunter2@x/y", "hunter2hunter2"]
)
async def test_a_database_that_cannot_be_used_is_found_and_its_password_is_not_told(patient: Patient, url: str) -> None:
    settings = Settings(home=patient.home, database=DatabaseSettings(url=SecretStr(url)))
    found = [x async for x in examine_installation(settings, Vault(patient.home), CLOCK, free=lambda folder: PLENTY)]
    (finding,) = [x for x in found if x.verdict is not CheckVerdict.OK]
    assert finding.check is Check.DATABASE
    assert "POSTROOM_DATABASE__URL" in finding.remedy
    assert "hunter2" not in finding.text


async def test_a_damaged_database_file_is_found(patient: Patient) -> None:
    (patient.home / "postroom.db").write_bytes(b"this is not a database" * 100)
    finding = await patient.complaint()
    assert (finding.check, "damaged" in finding.message) == (Check.DATABASE, True)


@pytest.mark.parametrize(("version", "check"), [("9999", Check.DATABASE), ("0001", None)])
async def test_a_schema_ahead_is_found_and_one_behind_is_left_as_it_is(
    patient: Patient, version: str, check: Check | None
) -> None:
    await patient.has_account("http://127.0.0.1:1")
    database = await connect(patient.settings.database_url)
    await database.write(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": version}))
    await database.close()
    assert [finding.check for finding in await patient.complaints()] == ([check] if check else [])


async def test_a_lost_key_is_found(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url, sim.token)
    (patient.home / KEY_FILE).unlink()
    finding = await patient.complaint()
    assert finding.check is Check.VAULT
    assert "its key is missing" in finding.message


async def test_an_account_without_a_login_is_found(patient: Patient, sim: GmailSim) -> None:
    await patient.has_account(sim.url)
    finding = await patient.complaint()
    assert (finding.check, f"account add gmail --email {OWNER}" in finding.remedy) == (Check.AUTH, True)


async def test_a_name_that_does_not_resolve_is_a_dns_finding(patient: Patient) -> None:
    await patient.has_token("https://nothing.invalid", "ya29.x")
    finding = await patient.complaint()
    assert finding.check is Check.DNS
    assert "name server" in finding.remedy


async def test_a_login_server_that_cannot_be_found_is_not_taken_for_a_bad_login(
    patient: Patient, sim: GmailSim
) -> None:
    stored(patient.home, api_base=sim.url, token_uri="https://nothing.invalid/token", now=CLOCK.now())  # noqa: S106
    await patient.has_account(sim.url)
    finding = await patient.complaint()
    assert (finding.check, finding.about) == (Check.DNS, "nothing.invalid")


async def test_a_dead_port_is_a_network_finding(patient: Patient) -> None:
    await patient.has_token("http://127.0.0.1:1", "ya29.x")
    finding = await patient.complaint()
    assert (finding.check, finding.message) == (Check.NETWORK, "127.0.0.1 refused the connection.")


async def test_a_server_that_speaks_no_tls_is_a_tls_finding(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url.replace("http:", "https:"), sim.token)
    finding = await patient.complaint()
    assert finding.check is Check.TLS
    assert "does not speak TLS" in finding.message


@pytest.mark.parametrize(("valid", "problem"), [(True, "is not trusted"), (False, "is not valid at this machine's")])
async def test_a_certificate_that_cannot_be_trusted_is_a_tls_finding(
    patient: Patient,
    tmp_path_factory: pytest.TempPathFactory,
    valid: bool,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = certificate(tmp_path_factory.mktemp("tls"), valid=valid)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*files)
    if not valid:
        monkeypatch.setattr(
            "postroom.mailboxes.reachability.trusted", lambda: ssl.create_default_context(cafile=str(files[0]))
        )
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=server_side)
    async with server:
        await patient.has_token(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", "ya29.x")
        finding = await patient.complaint()
    assert finding.check is Check.TLS
    assert problem in finding.message


async def test_a_clock_an_hour_off_is_a_clock_finding(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url, sim.token)
    sim.control.skew = timedelta(hours=1)
    finding = await patient.complaint()
    assert finding.check is Check.CLOCK
    assert "clock is 60 minutes behind" in finding.message
    assert "timedatectl" in finding.message


async def test_a_revoked_grant_is_an_auth_finding(patient: Patient, sim: GmailSim) -> None:
    await logged_in(sim, patient.home, CLOCK)
    await patient.has_account(sim.url)
    sim.control.revoke()
    finding = await patient.complaint()
    assert finding.check is Check.AUTH
    assert "seven days" in finding.message


async def test_an_expired_token_that_can_be_renewed_is_no_finding_at_all(patient: Patient, sim: GmailSim) -> None:
    await logged_in(sim, patient.home, CLOCK)
    await patient.has_account(sim.url)
    sim.control.expire_tokens()
    assert await patient.complaints() == []


async def test_a_bare_token_that_has_expired_is_an_auth_finding(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url, sim.token)
    sim.control.expire_tokens()
    finding = await patient.complaint()
    assert finding.check is Check.AUTH
    assert "cannot be renewed" in finding.message


async def test_a_login_for_another_mailbox_is_an_auth_finding(patient: Patient, sim: GmailSim) -> None:
    grant = StaticGrant(email="other@example.com", api_base=sim.url, access_token=sim.token)
    enrolment = Enrolment(await connect(patient.settings.database_url), GrantStore(Vault(patient.home)), CLOCK)
    with pytest.raises(Fatal, match=r"opens the mailbox of owner@example\.com instead.*Nothing was stored"):
        await enrolment.add(grant)
    await enrolment.database.close()
    assert GrantStore(Vault(patient.home)).find("other@example.com") is None


@pytest.mark.parametrize("granted", [LABELS, READ])
async def test_an_insufficient_scope_is_a_scope_finding(patient: Patient, sim: GmailSim, granted: str) -> None:
    token = sim.control.new_token(frozenset({granted}))
    grants, grant = await logged_in(sim, patient.home, CLOCK)
    grants.save(grant.model_copy(update={"access_token": token, "scopes": frozenset({granted})}))
    await patient.has_account(sim.url)
    finding = await patient.complaint()
    assert finding.check is Check.SCOPE
    assert "has not granted gmail.modify" in finding.message
    assert f"account add gmail --email {OWNER}" in finding.message


async def test_a_bare_token_of_insufficient_scope_is_a_scope_finding(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url, sim.control.new_token(frozenset({LABELS})))
    assert (await patient.complaint()).check is Check.SCOPE


async def test_an_exhausted_quota_is_a_quota_finding(patient: Patient) -> None:
    async with running_sim(mailbox(1), quota=NO_UNITS) as sim:
        await patient.has_token(sim.url, sim.token)
        finding = await patient.complaint()
    assert finding.check is Check.QUOTA
    assert "userRateLimitExceeded" in finding.message
    assert "Work goes on by itself" in finding.remedy


@pytest.mark.parametrize(
    ("code", "reason"), [(500, "backendError"), (403, "domainPolicy"), (403, "accessNotConfigured")]
)
async def test_a_service_that_refuses_for_reasons_of_its_own_is_a_service_finding(
    patient: Patient, sim: GmailSim, code: int, reason: str
) -> None:
    await patient.has_token(sim.url, sim.token)
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=code, reason=reason)))
    finding = await patient.complaint()
    assert finding.check is Check.SERVICE
    assert reason in finding.message


@pytest.mark.parametrize(
    "answer",
    [
        page(b"<html>It works!</html>"),
        page(b"<html>Not found</html>", "404 Not Found"),
        page(b'{"hello": "world"}', content_type="application/json"),
        page(b'{"emailAddress": 7}', content_type="application/json"),
        page(b"[]", content_type="application/json"),
        page(b"", "302 Found", headers="Location: http://127.0.0.1:1/login\r\n"),
        page(b"no", "401 Unauthorized"),
    ],
)
async def test_an_address_that_is_not_gmail_is_a_service_finding(patient: Patient, answer: bytes) -> None:
    async with answering(answer) as url:
        await patient.has_token(url, "ya29.x")
        complaints = await patient.complaints()
    failed = [finding for finding in complaints if finding.verdict is CheckVerdict.FAILED]
    assert [finding.check for finding in failed] == [Check.SERVICE]
    assert "is not the Gmail API" in failed[0].message
    assert "Check the account's API address" in failed[0].message


async def test_the_wrong_path_at_gmail_itself_is_a_service_finding(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(f"{sim.url}/elsewhere", sim.token)
    finding = await patient.complaint()
    assert (finding.check, "is not the Gmail API" in finding.message) == (Check.SERVICE, True)


async def test_a_server_that_hangs_up_is_a_network_finding(patient: Patient) -> None:
    async with answering(b"") as url:
        await patient.has_token(url, "ya29.x")
        assert (await patient.complaint()).check is Check.NETWORK


async def test_a_check_is_noted_with_the_account_and_cleared_when_all_is_well(patient: Patient, sim: GmailSim) -> None:
    await patient.has_token(sim.url, sim.token)
    database = await connect(patient.settings.database_url)
    enrolment = Enrolment(database, GrantStore(Vault(patient.home)), CLOCK)
    fault = sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=500)))
    for status in (AccountStatus.FAILING, AccountStatus.ACTIVE):
        account = await database.read(lambda tx: get_account(tx, OWNER))
        await enrolment.check(account)
        noted = await database.read(lambda tx: get_account(tx, OWNER))
        assert noted.status is status
        assert (noted.last_error is None) is (status is AccountStatus.ACTIVE)
        sim.control.clear_faults(fault)
    await database.close()


def certificate(folder: Path, *, valid: bool) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody vouches for; not valid: it ran out in 2001."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    start = datetime(2000, 1, 1, tzinfo=UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC) if valid else start + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(*formats))
    return paths


@pytest.mark.req("HW-3")
async def test_a_settings_file_with_secrets_that_others_may_read_is_a_failure(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "postroom.toml"
    file.write_text('[telemetry]\nmetrics_token = "a secret of scrapers"\n')
    file.chmod(0o644)
    settings = Settings(home=tmp_path, telemetry=TelemetrySettings(metrics_token=SecretStr("a secret of scrapers")))
    found = examine_installation(settings, Vault(tmp_path), CLOCK, free=lambda folder: PLENTY)
    [failed] = [finding async for finding in found if finding.verdict is CheckVerdict.FAILED]
    assert (failed.check, failed.about) == (Check.HOME, str(file))
    assert "mode 0644" in failed.message
    assert failed.remedy == f"Run `chmod 600 {file}`."
    file.chmod(0o600)
    assert open_secrets(settings) == []


@pytest.mark.req("HW-3")
def test_a_settings_file_without_secrets_may_be_read_and_the_vault_may_not(tmp_path: Path) -> None:
    (tmp_path / "postroom.toml").write_text("[worker]\nconcurrency = 4\n")
    Vault(tmp_path).put("a", b"b")
    settings = Settings(home=tmp_path)
    assert open_secrets(settings) == []
    [entry, *_] = sorted((tmp_path / "vault").iterdir())
    entry.chmod(0o640)
    assert open_secrets(settings) == [entry]


@pytest.mark.req("HW-1")
async def test_troubled_messages_and_live_mail_that_fails_again_and_again_are_told(
    patient: Patient, sim: GmailSim
) -> None:
    await logged_in(sim, patient.home, CLOCK)
    await patient.has_account(sim.url)
    database = await connect(patient.settings.database_url, patient.settings.database)
    [account] = await database.read(list_accounts)
    trouble = MessageTrouble("18f0", TroubleKind.READ, "ValueError")
    await database.write(lambda tx: record_trouble(tx, account.id, ArrivalLane.LIVE, [trouble], CLOCK.now()))
    [told] = await patient.complaints()
    assert (told.check, told.verdict) == (Check.MAIL, CheckVerdict.WARNING)
    assert "1 message gave trouble" in told.message
    assert "postroom sync bad list" in told.text
    for _ in range(3):
        await database.write(lambda tx: claim_reader(tx, account.id, "a connector", CLOCK.now()))
    await database.close()
    failing, _ = await patient.complaints()
    assert (failing.check, failing.verdict) == (Check.MAIL, CheckVerdict.FAILED)
    assert "New mail was not taken in completely" in failing.message
