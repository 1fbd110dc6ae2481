//! The catalog in etcd (<https://etcd.io>).
//!
//! Each change is a transaction that compares `mod_revision`. Reads are linearizable: they see all earlier changes of all nodes,
//! and fail while etcd has no quorum. `docs/decisions/035-catalog-in-etcd.md` has the reasons.

mod connection;
mod credentials;
mod failure;

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use farfork_wire::NodeName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::location::EtcdLocation;
use super::{
    Catalog, CatalogContents, CatalogError, ClusterRecords, DamagedRecord, MemberRecord, RosterRecord, VolumeName,
    VolumeNode, VolumeRecord, record_damage, warn_of_new_damage,
};
use connection::{EtcdConnection, EtcdReply};

/// The version of the values that this build reads and writes.
const FORMAT_VERSION: u32 = 1;
/// Time limit of a request. The election of a new leader takes about one second, with etcd's default settings.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a change. A safeguard: the watch reports changes earlier.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A catalog in etcd, with these keys:
///
/// | key | value |
/// |---|---|
/// | `PREFIX/volumes/NAME` | a volume's record; its revision is the key's `mod_revision` |
/// | `PREFIX/nodes/NAME` | the addresses of a node |
/// | `PREFIX/cluster` | the identity of the cluster |
/// | `PREFIX/members/NAME` | the record of a member |
/// | `PREFIX/roster` | the encoded roster; its revision is the key's `mod_revision` |
/// | `PREFIX/changes` | written by each change of a volume or node, so that one small read shows whether anything has changed |
#[derive(Debug)]
pub struct EtcdCatalog {
    location: EtcdLocation,
    connection: EtcdConnection,
    cached: Mutex<Option<CachedKeys>>,
    changes: Arc<WatchedChanges>,
}

/// The contents of all keys at one revision of etcd.
#[derive(Debug)]
struct CachedKeys {
    /// The revision of etcd at which the keys were read.
    revision: i64,
    /// The `mod_revision` of the key `changes`; 0 if it does not exist.
    last_change: i64,
    contents: Arc<CatalogContents>,
}

/// The last change that the watch has reported. The watch also reports changes by hand, which do not write the key `changes`.
#[derive(Debug, Default)]
pub(super) struct WatchedChanges {
    last: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchState {
    is_watching: bool,
    revision: i64,
}

/// The value of the key of a volume or a node.
#[derive(Serialize, Deserialize)]
struct StoredValue<T> {
    format: u32,
    /// Random. It shows whether a write was applied whose reply was lost.
    write: u64,
    value: T,
}

/// The part that every version of a value has.
#[derive(Deserialize)]
struct ValueFormat {
    format: u32,
}

impl EtcdCatalog {
    /// Opens a catalog. Connects with the first request.
    ///
    /// # Errors
    /// `Store` if the credentials cannot be read.
    pub fn open(location: &EtcdLocation) -> Result<Self, CatalogError> {
        Self::open_with_limit(location, REQUEST_TIMEOUT)
    }

    fn open_with_limit(location: &EtcdLocation, request_timeout: Duration) -> Result<Self, CatalogError> {
        let store_error = |source| CatalogError::Store { operation: "open", store: location.to_string(), source };
        Ok(Self {
            connection: EtcdConnection::open(location, request_timeout).map_err(store_error)?,
            location: location.clone(),
            cached: Mutex::new(None),
            changes: Arc::default(),
        })
    }

    fn key(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.location.prefix)
    }

    /// A key that exists once.
    fn single_key(&self, name: &str) -> String {
        format!("{}/{name}", self.location.prefix)
    }

    fn store_error(&self, operation: &'static str, source: io::Error) -> CatalogError {
        CatalogError::Store { operation, store: self.location.to_string(), source }
    }

    /// The `mod_revision` of the key `changes`.
    fn read_last_change(&self) -> Result<i64, CatalogError> {
        let reply = self.get_changes().map_err(|error| self.store_error("read", error))?;
        Ok(reply.kvs().first().map_or(0, KeyValue::mod_revision))
    }

    /// The present revision of etcd; `None` if it cannot be read.
    fn read_revision(&self) -> Option<i64> {
        self.get_changes().ok()?.header().map(etcd_client::ResponseHeader::revision)
    }

    fn get_changes(&self) -> io::Result<GetResponse> {
        let key = self.single_key("changes");
        let reply = self.connection.call(move |mut client| {
            let key = key.clone();
            async move { client.get(key, None).await }
        })?;
        Ok(reply.reply)
    }

    fn read_all(&self) -> Result<CachedKeys, CatalogError> {
        let prefix = format!("{}/", self.location.prefix);
        let reply = self.connection.call(move |mut client| {
            let prefix = prefix.clone();
            async move { client.get(prefix, Some(GetOptions::new().with_prefix())).await }
        });
        let EtcdReply { mut reply, .. } = reply.map_err(|error| self.store_error("read", error))?;
        let revision = reply.header().map_or(0, etcd_client::ResponseHeader::revision);
        let (mut contents, mut last_change) = (CatalogContents::default(), 0);
        for pair in reply.take_kvs() {
            let key = String::from_utf8_lossy(pair.key()).into_owned();
            let name = key.strip_prefix(&self.location.prefix).unwrap_or_default();
            if let Some(name) = name.strip_prefix("/volumes/") {
                let Ok(name) = VolumeName::new(name) else { continue };
                match self.decode_volume(&key, &pair) {
                    Ok(record) => drop(contents.volumes.insert(name, record)),
                    Err(reason) => {
                        let revision = pair.mod_revision().cast_unsigned();
                        contents.damaged.insert(name, DamagedRecord { revision, reason });
                    }
                }
            } else if let Some(name) = name.strip_prefix("/nodes/") {
                // A node writes its own record again if it is missing.
                if let (Ok(name), Ok(node)) = (NodeName::new(name), decode(pair.value())) {
                    contents.nodes.insert(name, node);
                }
            } else if name == "/changes" {
                last_change = pair.mod_revision();
            }
        }
        Ok(CachedKeys { revision, last_change, contents: Arc::new(contents) })
    }

    fn decode_volume(&self, key: &str, pair: &KeyValue) -> Result<VolumeRecord, String> {
        let in_store = |reason: String| format!("key {key} of {}: {reason}", self.location);
        let record: VolumeRecord = decode(pair.value()).map_err(in_store)?;
        match record_damage(&record) {
            Some(reason) => Err(in_store(reason.to_owned())),
            None => Ok(VolumeRecord { revision: pair.mod_revision().cast_unsigned(), ..record }),
        }
    }

    /// Executes operations if a key has a `mod_revision`, and writes the key `changes`. The reply to a failed comparison has
    /// the present value of the key.
    fn change(&self, key: &str, revision: u64, operation: TxnOp) -> Result<EtcdReply<TxnResponse>, CatalogError> {
        self.execute_if(key, revision, [operation, self.change_mark()])
    }

    /// The operation of each change that writes the key `changes`.
    fn change_mark(&self) -> TxnOp {
        TxnOp::put(self.single_key("changes"), "", None)
    }

    /// Executes operations if a key has a `mod_revision`. The reply to a failed comparison has the present value of the key.
    fn execute_if<const N: usize>(
        &self,
        key: &str,
        revision: u64,
        operations: [TxnOp; N],
    ) -> Result<EtcdReply<TxnResponse>, CatalogError> {
        let is_present = Compare::mod_revision(key, CompareOp::Equal, revision.cast_signed());
        let transaction = Txn::new().when([is_present]).and_then(operations);
        self.execute(transaction.or_else([TxnOp::get(key, None)]), "write")
    }

    fn execute(&self, transaction: Txn, operation: &'static str) -> Result<EtcdReply<TxnResponse>, CatalogError> {
        let reply = self.connection.call(move |mut client| {
            let transaction = transaction.clone();
            async move { client.txn(transaction).await }
        });
        reply.map_err(|error| self.store_error(operation, error))
    }
}

impl Catalog for EtcdCatalog {
    fn read(&self) -> Result<Arc<CatalogContents>, CatalogError> {
        let last_change = self.read_last_change()?;
        {
            let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cached) = &*cached
                && cached.last_change == last_change
                && self.changes.revision() <= cached.revision
            {
                return Ok(Arc::clone(&cached.contents));
            }
        }
        let read = self.read_all()?;
        let contents = Arc::clone(&read.contents);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have read a later revision.
        if cached.as_ref().is_none_or(|cached| cached.revision <= read.revision) {
            warn_of_new_damage(cached.as_ref().map(|cached| &*cached.contents), &contents);
            *cached = Some(read);
        }
        Ok(contents)
    }

    fn last_read(&self) -> Result<Arc<CatalogContents>, CatalogError> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = cached.as_ref().map(|cached| Arc::clone(&cached.contents));
        drop(cached);
        contents.map_or_else(|| self.read(), Ok)
    }

    fn alarm(&self) -> Option<String> {
        let reply = self.connection.call(|client| async move {
            client.maintenance_client().alarm(AlarmAction::Get, AlarmType::None, None).await
        });
        // A later etcd may want other permissions for this request.
        let reply = reply.inspect_err(|error| tracing::debug!(%error, "the alarms of etcd are not known")).ok()?.reply;
        // Not every reply about alarms has the revision.
        let mut alarms = reply.alarms().iter().filter(|alarm| alarm.alarm() != AlarmType::None);
        alarms.find_map(|alarm| self.connection.describe_alarm(alarm, self.read_revision()))
    }

    fn write_volume(&self, name: &VolumeName, record: &VolumeRecord) -> Result<u64, CatalogError> {
        let (key, write) = (self.key("volumes", name.as_str()), fastrand::u64(..));
        let value = encode(write, record);
        let EtcdReply { reply, .. } = self.change(&key, record.revision, TxnOp::put(key.as_str(), value, None))?;
        if reply.succeeded() {
            return Ok(reply.header().map_or(0, etcd_client::ResponseHeader::revision).cast_unsigned());
        }
        // An earlier attempt whose reply was lost may have written the record.
        let present = present_value(&reply);
        let is_own = |present: &KeyValue| {
            let stored = serde_json::from_slice::<StoredValue<VolumeRecord>>(present.value());
            stored.is_ok_and(|stored| stored.write == write)
        };
        match present.filter(is_own) {
            Some(present) => Ok(present.mod_revision().cast_unsigned()),
            None => Err(CatalogError::Conflict(name.clone())),
        }
    }

    fn remove_volume(&self, name: &VolumeName, revision: u64) -> Result<(), CatalogError> {
        let key = self.key("volumes", name.as_str());
        let EtcdReply { reply, was_repeated } = self.change(&key, revision, TxnOp::delete(key.as_str(), None))?;
        // An earlier attempt whose reply was lost may have removed the record.
        if reply.succeeded() || (was_repeated && present_value(&reply).is_none()) {
            Ok(())
        } else {
            Err(CatalogError::Conflict(name.clone()))
        }
    }

    fn register_node(&self, name: &NodeName, node: &VolumeNode) -> Result<(), CatalogError> {
        let (key, value) = (self.key("nodes", name.as_str()), encode(fastrand::u64(..), node));
        self.execute(Txn::new().and_then([TxnOp::put(key, value, None), self.change_mark()]), "write").map(drop)
    }

    fn read_cluster(&self) -> Result<ClusterRecords, CatalogError> {
        let members_prefix = self.key("members", "");
        let members = TxnOp::get(members_prefix.as_str(), Some(GetOptions::new().with_prefix()));
        let [cluster, roster] = ["cluster", "roster"].map(|key| TxnOp::get(self.single_key(key), None));
        let EtcdReply { reply, .. } = self.execute(Txn::new().and_then([cluster, roster, members]), "read")?;
        let mut records = ClusterRecords::default();
        let pairs = reply.op_responses().into_iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(mut found) => Some(found.take_kvs()),
            _ => None,
        });
        for pair in pairs.flatten() {
            if let Some(name) = pair.key().strip_prefix(members_prefix.as_bytes()) {
                // A node writes its own record again if it is damaged.
                let name = NodeName::new(&String::from_utf8_lossy(name));
                if let (Ok(name), Ok(member)) = (name, decode(pair.value())) {
                    records.members.insert(name, member);
                }
            } else if pair.key() == self.single_key("cluster").as_bytes() {
                records.cluster = Some(String::from_utf8_lossy(pair.value()).into_owned());
            } else {
                let (revision, bytes) = (pair.mod_revision().cast_unsigned(), pair.value().to_vec());
                records.roster = Some(RosterRecord { revision, bytes });
            }
        }
        Ok(records)
    }

    fn write_cluster(&self, cluster: &str) -> Result<String, CatalogError> {
        let key = self.single_key("cluster");
        let EtcdReply { reply, .. } = self.execute_if(&key, 0, [TxnOp::put(key.as_str(), cluster, None)])?;
        let present = if reply.succeeded() { None } else { present_value(&reply) };
        Ok(present.map_or_else(|| cluster.to_owned(), |pair| String::from_utf8_lossy(pair.value()).into_owned()))
    }

    fn write_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError> {
        let put = TxnOp::put(self.key("members", name.as_str()), encode(0, member), None);
        self.execute(Txn::new().and_then([put]), "write").map(drop)
    }

    fn remove_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError> {
        let key = self.key("members", name.as_str());
        let is_present = Compare::value(key.as_str(), CompareOp::Equal, encode(0, member));
        let transaction = Txn::new().when([is_present]).and_then([TxnOp::delete(key, None)]);
        self.execute(transaction, "write").map(drop)
    }

    fn write_roster(&self, roster: &RosterRecord) -> Result<bool, CatalogError> {
        let key = self.single_key("roster");
        let put = TxnOp::put(key.as_str(), roster.bytes.clone(), None);
        let EtcdReply { reply, .. } = self.execute_if(&key, roster.revision, [put])?;
        Ok(reply.succeeded())
    }

    fn wait_for_change(&self) {
        if self.changes.start() {
            self.connection.watch(format!("{}/", self.location.prefix), Arc::clone(&self.changes));
        }
        let read = self.cached.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |read| read.revision);
        self.changes.wait(read);
    }
}

impl WatchedChanges {
    /// Whether the caller must start the watch.
    fn start(&self) -> bool {
        !std::mem::replace(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner).is_watching, true)
    }

    fn revision(&self) -> i64 {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).revision
    }

    /// Reports that keys may have changed at a revision of etcd.
    pub(super) fn report(&self, revision: i64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.revision = last.revision.max(revision);
        self.changed.notify_all();
    }

    /// Waits until a change later than `revision` is reported, at most [`WAIT_MAX`].
    fn wait(&self, revision: i64) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(last, WAIT_MAX, |last| last.revision <= revision);
        drop(waited);
    }
}

fn encode<T: Serialize>(write: u64, value: &T) -> Vec<u8> {
    serde_json::to_vec(&StoredValue { format: FORMAT_VERSION, write, value }).expect("records have text keys only")
}

/// Decodes the value of a key, or says why it cannot be decoded.
fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    let ValueFormat { format } = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    if format != FORMAT_VERSION {
        return Err(format!("it has format {format}, and this build reads {FORMAT_VERSION}"));
    }
    let StoredValue { value, .. } = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    Ok(value)
}

/// The present value of a key, in the reply to a failed comparison.
fn present_value(reply: &TxnResponse) -> Option<KeyValue> {
    match reply.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(mut present)) => present.take_kvs().into_iter().next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
