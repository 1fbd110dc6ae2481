//! JSON and tables of volumes and replicas for `farfork volume ls` and `status`. The JSON keys are stable.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farfork_api::v1;
use serde::Serialize;

use crate::output::{Table, format_age, format_bytes};

/// A volume. If its record is damaged, it has only a name and `damage`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct VolumeView {
    pub(super) volume: String,
    state: &'static str,
    pub(super) replicas: Vec<String>,
    pub(super) live: Vec<String>,
    durability: Option<&'static str>,
    pub(super) log_bytes: u64,
    clients: Vec<String>,
    pub(super) writer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<DamageView>,
}

/// A record that cannot be read.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct DamageView {
    reason: String,
    revision: u64,
}

/// A replica of a volume.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ReplicaView {
    pub(super) node: String,
    live: bool,
    pub(super) failure: Option<String>,
    free_bytes: Option<u64>,
    pub(super) full: bool,
    pub(super) logs: Vec<LogView>,
    /// Bytes of the logs that another replica has, and this one has not.
    backlog_bytes: Option<u64>,
    /// The rate at which the replica takes its backlog, and the time that the rest takes. Unknown until it is measured.
    rate_bytes_per_s: Option<u64>,
    backlog_seconds: Option<u64>,
}

/// The last check of a volume.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct LastCheckView {
    unix_ms: u64,
    differences: u64,
    repaired: Vec<String>,
}

impl LastCheckView {
    /// The newest check that any replica has saved.
    pub(super) fn newest(status: &v1::VolumeStatus) -> Option<Self> {
        let checks = status.replicas.iter().filter_map(|replica| replica.last_check.as_ref());
        let v1::VolumeCheckResult { ended_unix_ms, differences, repaired } =
            checks.max_by_key(|check| check.ended_unix_ms)?.clone();
        Some(Self { unix_ms: ended_unix_ms, differences, repaired })
    }

    /// The result of the check as a sentence.
    pub(super) fn describe(&self) -> String {
        let found = match (self.differences, self.repaired.as_slice()) {
            (0, _) => "the replicas are equal".to_owned(),
            (count, []) => format!("differences: {count}; see `farfork volume check`"),
            (count, repaired) => format!("differences: {count}; copied again: {}", repaired.join(",")),
        };
        // The time of a check outlives the boots of all machines, so only their wall clocks can tell its age.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = now.saturating_sub(Duration::from_millis(self.unix_ms));
        format!("checked {} ago: {found}", format_age(age))
    }
}

/// The log of a client on a replica.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct LogView {
    pub(super) client: String,
    pub(super) logged: u64,
    pub(super) committed: u64,
    pub(super) published: u64,
    /// Bytes of data that publishing did not copy, because later changes overwrote or removed them.
    pub(super) coalesced: u64,
    /// Bytes of the log that were sent to the next replica, before compression. `compressed` is their number after it.
    pub(super) forwarded: u64,
    pub(super) compressed: u64,
}

impl LogView {
    /// Logged bytes that not every live replica has.
    pub(super) fn uncommitted(&self) -> u64 {
        self.logged.saturating_sub(self.committed)
    }

    /// Committed bytes that the shared tree does not have yet.
    pub(super) fn unpublished(&self) -> u64 {
        self.committed.saturating_sub(self.published)
    }
}

impl VolumeView {
    pub(super) fn new(volume: v1::Volume) -> Self {
        let (state, durability) = (state_text(volume.state()), durability_text(volume.durability()));
        let is_damaged = volume.state() == v1::VolumeState::Damaged;
        Self {
            volume: volume.name,
            state,
            replicas: volume.replicas,
            live: volume.live,
            durability,
            log_bytes: volume.log_bytes,
            clients: volume.clients,
            writer: Some(volume.writer).filter(|writer| !writer.is_empty()),
            damage: is_damaged.then_some(DamageView { reason: volume.damage, revision: volume.revision }),
        }
    }

    /// The volume of a status.
    pub(super) fn of(status: &v1::VolumeStatus) -> Self {
        Self::new(status.volume.clone().unwrap_or_default())
    }

    /// Why the record of the volume cannot be read, and the next step. None for a record that is not damaged.
    pub(super) fn describe_damage(&self) -> Option<String> {
        let (volume, DamageView { reason, revision }) = (&self.volume, self.damage.as_ref()?);
        Some(format!(
            "{volume}: revision {revision} of its record is damaged: {reason}; restore it with \
             `farfork volume import-catalog FILE {volume}`"
        ))
    }
}

impl ReplicaView {
    pub(super) fn all(status: &v1::VolumeStatus) -> Vec<Self> {
        let unknown = v1::Volume::default();
        let volume = status.volume.as_ref().unwrap_or(&unknown);
        let mut replicas: Vec<_> = status.replicas.iter().map(|replica| Self::new(volume, replica)).collect();
        let clients = 0..volume.clients.len();
        let end_of = |client: usize| replicas.iter().filter_map(|replica| Some(replica.logs.get(client)?.logged)).max();
        let ends: u64 = clients.filter_map(end_of).sum();
        for replica in replicas.iter_mut().filter(|replica| replica.failure.is_none()) {
            replica.backlog_bytes = Some(ends.saturating_sub(replica.logged()));
        }
        replicas
    }

    /// Whether the replica lacks a part of a log that another one has.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog_bytes.is_some_and(|bytes| bytes > 0)
    }

    fn logged(&self) -> u64 {
        self.logs.iter().map(|log| log.logged).sum()
    }

    /// Computes the rates of replicas with a backlog from their state some time before.
    pub(super) fn measure_rates(replicas: &mut [Self], earlier: &[Self], elapsed: Duration) {
        for replica in replicas.iter_mut().filter(|replica| replica.has_backlog()) {
            let Some(before) = earlier.iter().find(|before| before.node == replica.node) else { continue };
            let taken = replica.logged().saturating_sub(before.logged());
            let rate = (taken as f64 / elapsed.as_secs_f64()) as u64;
            replica.rate_bytes_per_s = Some(rate);
            replica.backlog_seconds = replica.backlog_bytes.filter(|_| rate > 0).map(|bytes| bytes.div_ceil(rate));
        }
    }

    fn new(volume: &v1::Volume, replica: &v1::VolumeReplica) -> Self {
        let logs = volume.clients.iter().zip(&replica.logs).map(|(client, log)| LogView {
            client: client.clone(),
            logged: log.logged,
            committed: log.committed,
            published: log.published,
            coalesced: log.coalesced,
            forwarded: log.forwarded,
            compressed: log.compressed,
        });
        Self {
            node: replica.node.clone(),
            live: volume.live.contains(&replica.node),
            failure: Some(replica.failure.clone()).filter(|failure| !failure.is_empty()),
            free_bytes: replica.free_bytes,
            full: replica.is_full,
            logs: logs.collect(),
            backlog_bytes: None,
            rate_bytes_per_s: None,
            backlog_seconds: None,
        }
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.live, &self.failure) {
            (_, Some(_)) => "no answer",
            (true, None) if self.full => "disk full",
            (true, None) => "live",
            (false, None) => "not live",
        }
    }
}

/// Makes a table with a row for each volume.
pub(super) fn volume_table(volumes: &[VolumeView]) -> Table {
    let mut table = Table::new(&["VOLUME", "STATE", "REPLICAS", "LIVE", "DURABILITY", ">LOG", "WRITER"]);
    for volume in volumes {
        table.add_row([
            volume.volume.clone(),
            volume.state.to_owned(),
            volume.replicas.join(","),
            volume.live.join(","),
            volume.durability.unwrap_or("-").to_owned(),
            format_bytes(volume.log_bytes),
            volume.writer.as_deref().unwrap_or("-").to_owned(),
        ]);
    }
    table
}

/// Makes a table with a row for each log of each replica, and a row for a replica without logs.
pub(super) fn replica_table(replicas: &[ReplicaView]) -> Table {
    let mut table = Table::new(&["REPLICA", "STATE", ">FREE", "CLIENT", ">LOGGED", ">UNCOMMITTED", ">UNPUBLISHED"]);
    for replica in replicas {
        let free = replica.free_bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let row = |cells: [String; 4]| {
            [replica.node.clone(), replica.state().to_owned(), free.clone()].into_iter().chain(cells)
        };
        if replica.logs.is_empty() {
            table.add_row(row(["-"; 4].map(str::to_owned)));
        }
        for log in &replica.logs {
            let [logged, uncommitted, unpublished] =
                [log.logged, log.uncommitted(), log.unpublished()].map(format_bytes);
            table.add_row(row([log.client.clone(), logged, uncommitted, unpublished]));
        }
    }
    table
}

/// Makes a table of the replicas that lack a part of a log; none if each has all logs.
pub(super) fn backlog_table(replicas: &[ReplicaView]) -> Option<Table> {
    let mut table = Table::new(&["REPLICA", ">BACKLOG", ">RATE", ">TIME LEFT"]);
    for replica in replicas.iter().filter(|replica| replica.has_backlog()) {
        let text = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let rate = replica.rate_bytes_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", format_bytes(rate)));
        let left = replica.backlog_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
        table.add_row([replica.node.clone(), text(replica.backlog_bytes), rate, left]);
    }
    replicas.iter().any(ReplicaView::has_backlog).then_some(table)
}

fn state_text(state: v1::VolumeState) -> &'static str {
    match state {
        v1::VolumeState::Unspecified => "unknown",
        v1::VolumeState::Creating => "creating",
        v1::VolumeState::Ready => "ready",
        v1::VolumeState::Dropping => "dropping",
        v1::VolumeState::Damaged => "damaged",
    }
}

fn durability_text(durability: v1::VolumeDurability) -> Option<&'static str> {
    match durability {
        v1::VolumeDurability::Unspecified => None,
        v1::VolumeDurability::Memory => Some("memory"),
        v1::VolumeDurability::Disk => Some("disk"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in super::super) fn status() -> v1::VolumeStatus {
        let [n1, n2] = ["n1", "n2"].map(str::to_owned);
        let volume = v1::Volume {
            name: "data".to_owned(),
            state: v1::VolumeState::Ready.into(),
            replicas: vec![n1.clone(), n2.clone()],
            live: vec![n1.clone()],
            durability: v1::VolumeDurability::Disk.into(),
            log_bytes: 64 << 20,
            clients: vec![n2.clone()],
            writer: n2.clone(),
            ..v1::Volume::default()
        };
        let (published, coalesced, forwarded, compressed) = (0, 512, 8192, 700);
        let log = v1::VolumeLog { logged: 8192, committed: 4096, published, coalesced, forwarded, compressed };
        let replica = v1::VolumeReplica { node: n1, logs: vec![log], free_bytes: Some(1 << 30), ..Default::default() };
        let silent = v1::VolumeReplica { node: n2, failure: "it is down".to_owned(), ..Default::default() };
        v1::VolumeStatus { volume: Some(volume), replicas: vec![replica, silent], ..v1::VolumeStatus::default() }
    }

    #[test]
    fn documents_have_stable_keys() {
        let volume = serde_json::to_value(VolumeView::of(&status())).unwrap();
        let expected = serde_json::json!({
            "volume": "data", "state": "ready", "replicas": ["n1", "n2"], "live": ["n1"], "durability": "disk",
            "log_bytes": 64 << 20, "clients": ["n2"], "writer": "n2",
        });
        assert_eq!(volume, expected);
        let replicas = serde_json::to_value(ReplicaView::all(&status())).unwrap();
        let log = serde_json::json!({
            "client": "n2", "logged": 8192, "committed": 4096, "published": 0, "coalesced": 512,
            "forwarded": 8192, "compressed": 700,
        });
        let expected = serde_json::json!([
            { "node": "n1", "live": true, "failure": null, "free_bytes": 1 << 30, "full": false, "logs": [log],
              "backlog_bytes": 0, "rate_bytes_per_s": null, "backlog_seconds": null },
            { "node": "n2", "live": false, "failure": "it is down", "free_bytes": null, "full": false, "logs": [],
              "backlog_bytes": null, "rate_bytes_per_s": null, "backlog_seconds": null },
        ]);
        assert_eq!(replicas, expected);
    }

    #[test]
    fn a_damaged_record_has_its_reason_and_the_next_step() {
        let (state, damage) = (v1::VolumeState::Damaged.into(), "it has no chain".to_owned());
        let view =
            VolumeView::new(v1::Volume { name: "data".to_owned(), state, revision: 7, damage, ..Default::default() });
        let document = serde_json::to_value(&view).unwrap();
        assert_eq!((&document["state"], &document["durability"]), (&"damaged".into(), &serde_json::Value::Null));
        assert_eq!(document["damage"], serde_json::json!({ "reason": "it has no chain", "revision": 7 }));
        let text = view.describe_damage().unwrap();
        assert!(text.contains("revision 7") && text.contains("import-catalog FILE data"), "{text}");
        assert_eq!(VolumeView::of(&status()).describe_damage(), None);
    }

    #[test]
    fn the_newest_check_is_described() {
        let mut status = status();
        assert_eq!(LastCheckView::newest(&status), None);
        for (replica, ended_unix_ms) in status.replicas.iter_mut().zip([2_000_000, 1_000_000]) {
            let differences = ended_unix_ms / 1_000_000;
            replica.last_check = Some(v1::VolumeCheckResult { ended_unix_ms, differences, repaired: Vec::new() });
        }
        let newest = LastCheckView::newest(&status).unwrap();
        assert_eq!((newest.unix_ms, newest.differences), (2_000_000, 2));
        assert!(newest.describe().contains("ago: differences: 2"));
    }

    #[test]
    fn tables_have_a_row_for_each_replica() {
        let text = volume_table(&[VolumeView::of(&status())]).render();
        assert!(text.lines().nth(1).unwrap().starts_with("data    ready  n1,n2     n1    disk"), "{text}");
        let text = replica_table(&ReplicaView::all(&status())).render();
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().nth(1).unwrap().starts_with("n1       live       1.0 GiB  n2"), "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("n2       no answer        -  -"), "{text}");
    }

    #[test]
    fn a_backlog_has_a_rate_and_a_time() {
        let mut status = status();
        assert!(backlog_table(&ReplicaView::all(&status)).is_none());
        let lagging_log = v1::VolumeLog { logged: 8192 - 6000, ..status.replicas[0].logs[0] };
        (status.replicas[1].failure, status.replicas[1].logs) = (String::new(), vec![lagging_log]);
        let earlier = ReplicaView::all(&status);
        status.replicas[1].logs[0].logged += 1000;
        let mut replicas = ReplicaView::all(&status);
        ReplicaView::measure_rates(&mut replicas, &earlier, Duration::from_millis(500));
        let values = |replica: &ReplicaView| (replica.backlog_bytes, replica.rate_bytes_per_s, replica.backlog_seconds);
        assert_eq!(values(&replicas[0]), (Some(0), None, None));
        assert_eq!(values(&replicas[1]), (Some(5000), Some(2000), Some(3)));
        let text = backlog_table(&replicas).unwrap().render();
        assert!(text.lines().nth(1).unwrap().starts_with("n2       4.9 KiB  2.0 KiB/s        3 s"), "{text}");
        // A replica that takes nothing has no time.
        ReplicaView::measure_rates(&mut replicas, &ReplicaView::all(&status), Duration::from_secs(1));
        assert_eq!(values(&replicas[1]), (Some(5000), Some(0), None));
    }

    #[test]
    fn a_full_disk_is_shown_as_a_state() {
        let mut status = status();
        status.replicas[0].is_full = true;
        assert_eq!(ReplicaView::all(&status)[0].state(), "disk full");
    }
}
