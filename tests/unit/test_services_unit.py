"""What the starter of servers decides without starting one."""

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from dev import downloads
from dev.downloads import Artifact, DownloadError, Downloads, pinned
from dev.servers import account, ports, spark
from dev.servers.process import Process
from dev.servers.records import Records
from dev.servers.server import Options, Server
from dev.services import ServiceError, Services, _stages

GROUPS = ("postgres-x86_64", "postgres-aarch64", "mysql-x86_64", "kafka", "jars-postgres", "jars-mysql", "jars-kafka")


class TestDownloads:
    """Nothing unpinned gets in, and nothing is hashed twice."""

    @pytest.mark.parametrize("group", GROUPS)
    def test_everything_is_pinned(self, group: str) -> None:
        assert pinned(group)
        assert all(re.fullmatch(r"[0-9a-f]{64}", artifact.sha256) for artifact in pinned(group))

    def test_an_unknown_group_is_named(self) -> None:
        with pytest.raises(DownloadError, match=r"'jars-oracle'.*jars-kafka"):
            pinned("jars-oracle")

    def test_what_is_not_as_pinned_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def bring(artifacts: list[Artifact], scratch: Path, _mark: str) -> None:
            (scratch / "out").mkdir()
            (scratch / "out" / artifacts[0].file_name).write_bytes(b"something else")

        monkeypatch.setattr(downloads, "_ivy", bring)
        with pytest.raises(DownloadError, match=r"is not what artifacts\.json pins"):
            Downloads(folder=tmp_path).group("jars-postgres")
        assert not list(tmp_path.glob("*.jar"))

    def test_a_file_is_hashed_once_and_again_when_it_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good = Artifact(organisation="o", name="n", version="1", sha256=downloads._sha256(_written(tmp_path / "x")))
        hashed: list[Path] = []
        real = downloads._sha256
        monkeypatch.setattr(downloads, "_sha256", lambda file: hashed.append(file) or real(file))
        cache, file = Downloads(folder=tmp_path), _written(tmp_path / good.file_name)
        assert [cache._whole(good), cache._whole(good), len(hashed)] == [True, True, 1]
        file.write_bytes(b"damaged")
        assert [cache._whole(good), len(hashed)] == [False, 2]


class TestNames:
    """What can be asked for."""

    @pytest.mark.parametrize("name", ["oracle", "postgres:", "postgres:../x", "Postgres"])
    def test_others_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ServiceError, match=r"There is no server .*there are postgres, kafka"):
            Services(tmp_path).up(name)

    def test_a_master_comes_before_what_needs_it(self) -> None:
        assert _stages(["connect", "postgres"], Options()) == [["connect", "postgres"]]
        assert _stages(["connect", "postgres"], Options(master="standalone", workers=2)) == [
            ["postgres", "standalone"],
            ["worker:1", "worker:2", "connect"],
        ]

    def test_what_never_was_cannot_be_restarted_or_killed(self, tmp_path: Path) -> None:
        with pytest.raises(ServiceError, match="start it with `up kafka`"):
            Services(tmp_path).restart("kafka")
        with pytest.raises(ServiceError, match="does not run"):
            Services(tmp_path).kill("kafka")

    def test_an_owner_must_live(self, tmp_path: Path) -> None:
        done = subprocess.Popen(["true"])
        done.wait()
        with pytest.raises(ServiceError, match="to own the servers"):
            Services(tmp_path, owner_pid=done.pid)


class TestProcesses:
    """Only what was started is ever signalled."""

    def test_a_recycled_pid_is_left_alone(self) -> None:
        other = subprocess.Popen(["sleep", "60"])
        try:
            now = Process.of(other.pid)
            assert now is not None
            before = Process(pid=now.pid, started=now.started - 1)
            before.send(signal.SIGKILL)
            assert not before.alive
            assert now.alive
        finally:
            other.kill()
            other.wait()
        assert not now.alive

    def test_a_record_of_another_process_is_not_a_running_server(self, tmp_path: Path) -> None:
        records = Records(home=tmp_path)
        records.folder("kafka").mkdir()
        state = {"ports": {"port": 1}, "url": "", "user": None, "password": None, "pid": os.getpid(), "started": 1}
        records.write("kafka", state)
        server = records.server("kafka")
        assert server is not None
        assert not server.running
        assert stat.S_IMODE((tmp_path / "kafka" / "server.json").stat().st_mode) == 0o600

    def test_ports_differ_and_are_kept(self) -> None:
        chosen = ports.choose(("port", "ui_port"), {})
        assert len(set(chosen.values())) == 2
        assert ports.choose(("port",), chosen) == {"port": chosen["port"]}

    def test_a_folder_is_open_only_if_all_its_parents_are(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir(mode=0o700)
        assert not account.open_to_all(inner / "data")
        assert account.reachable(inner, tmp_path, None) == inner


class TestSecrets:
    """Passwords stay out of what is shown."""

    @pytest.mark.parametrize(
        "text",
        [
            "jdbc:postgresql://h:1/db?user=u&password=s3cret&x=1",
            "jdbc:mysql://h:1/db?password=s3cret",
            "mysql://root:s3cret@127.0.0.1:1/mysql",
            "Map(user -> u, password -> s3cret, url -> x)",
            '.option("password", "s3cret").load()',
            "OPTIONS (password 's3cret')",
            '{"password": "s3cret"}',
            "sslpassword=s3cret",
        ],
    )
    def test_spark_redacts(self, text: str) -> None:
        assert "s3cret" not in re.sub(spark.SECRETS, "…", text)

    def test_what_is_no_secret_stays(self) -> None:
        text = "jdbc:postgresql://127.0.0.1:5432/db?user=u&reWriteBatchedInserts=true"
        assert re.sub(spark.SECRETS, "…", text) == text

    def test_a_server_shows_none(self) -> None:
        server = Server(
            name="mysql",
            kind="mysql",
            host="127.0.0.1",
            port=1,
            pid=None,
            log=Path("log"),
            url="mysql://root:s3cret@127.0.0.1:1/mysql",
            user="root",
            password="s3cret",
        )
        assert "s3cret" not in f"{server}{server.jdbc_url}"
        assert server.jdbc_url == "jdbc:mysql://127.0.0.1:1/mysql"

    def test_a_backslash_survives_a_properties_file(self, tmp_path: Path) -> None:
        spark.write_properties(tmp_path / "spark.conf", {"spark.redaction.string.regex": r"a\s"})
        assert (tmp_path / "spark.conf").read_text() == "spark.redaction.string.regex a\\\\s\n"


def _written(file: Path) -> Path:
    file.write_bytes(b"content")
    return file
