//! Finds lost parts of a replica: files and directories that are missing, of another type, too short or damaged, and those
//! that another one has replaced. Looks at a bounded number of files. Does not read the files of the volume, as `farfork
//! volume check` does.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::open_tree::{FileIdentity, OpenTree};
use super::volume_directory::{IDENTITY, LOGS, SHARED, VolumeDirectory};
use crate::log::{InspectedLog, LogFile, LogFileError, LogPoint};
use crate::publish::SharedTree;
use crate::replica_file::{find_metadata, is_lost};

/// A loss that makes a replica unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplicaLoss {
    /// The directory of the replica is missing, or a file of another type is at its path.
    All,
    /// The directory has the replica of another volume.
    OtherVolume,
    /// This file or directory of the replica is missing or damaged, or has another type.
    Part(String),
    /// Another file or directory is at the path of this one, such as an older copy.
    Replaced(PathBuf),
}

/// A log that the offload process has open.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLogFile {
    pub(super) client: u16,
    pub(super) identity: FileIdentity,
    /// The point up to which it is published.
    pub(super) published: LogPoint,
}

/// The files of a replica that the offload process has open.
pub(super) struct OpenReplica<'a> {
    /// The id of the volume.
    pub(super) id: u64,
    pub(super) directory: &'a File,
    pub(super) tree: &'a OpenTree,
    pub(super) logs: Vec<OpenLogFile>,
    /// The clients whose logs are not open. They may have no log yet.
    pub(super) unopened_logs: Vec<u16>,
    /// The replica is a live one. While a replica catches up, its tree is replaced, and may lack marks.
    pub(super) is_live: bool,
}

impl VolumeDirectory {
    /// Checks whether a replica that is not open has lost a part; none if it is complete.
    ///
    /// # Errors
    /// When a part can be neither read nor counted as lost.
    pub(super) fn find_loss(&self, id: u64, is_live: bool) -> io::Result<Option<ReplicaLoss>> {
        if let Some(loss) = self.find_lost_part(id)? {
            return Ok(Some(loss));
        }
        if let Some(part) = SharedTree::find_missing_inode_part(&self.present_shared_path()?)? {
            return Ok(Some(lost_in_shared(&part)));
        }
        let clients = self.log_clients()?;
        for client in &clients {
            if self.inspect_log(id, *client)?.is_none() {
                return Ok(Some(lost_log(*client)));
            }
        }
        self.find_lost_mark(clients, is_live)
    }

    /// Checks whether an open replica has lost a part. Makes some 20 system calls, and 10 for each log.
    ///
    /// # Errors
    /// As `find_loss`.
    pub(super) fn find_loss_of_open(&self, open: &OpenReplica<'_>) -> io::Result<Option<ReplicaLoss>> {
        if let Some(loss) = self.find_lost_part(open.id)? {
            return Ok(Some(loss));
        }
        let opened = FileIdentity::of(&open.directory.metadata()?);
        if find_directory(self.path())?.is_none_or(|found| FileIdentity::of(&found) != opened) {
            return Ok(Some(ReplicaLoss::Replaced(self.path().to_owned())));
        }
        for log in &open.logs {
            match self.inspect_log(open.id, log.client)? {
                None => return Ok(Some(lost_log(log.client))),
                Some(found) if FileIdentity::of(&found.metadata) != log.identity => {
                    return Ok(Some(ReplicaLoss::Replaced(self.log_path(log.client))));
                }
                Some(_) => {}
            }
        }
        for client in &open.unopened_logs {
            if find_metadata(&self.log_path(*client))?.is_some_and(|found| !found.is_file()) {
                return Ok(Some(lost_log(*client)));
            }
        }
        if !open.is_live {
            // A replica that catches up replaces its tree.
            return self.find_lost_mark(open.logs.iter().map(|log| log.client), false);
        }
        if let Some(replaced) = open.tree.find_replaced()? {
            return Ok(Some(ReplicaLoss::Replaced(replaced)));
        }
        let shared = self.present_shared_path()?;
        for log in &open.logs {
            if let Some(mark) = SharedTree::find_damaged_mark(&shared, log.client, log.published)? {
                return Ok(Some(lost_in_shared(&mark)));
            }
        }
        Ok(None)
    }

    /// Checks the parts that every replica has, open or not.
    fn find_lost_part(&self, id: u64) -> io::Result<Option<ReplicaLoss>> {
        let part = |name: &str| Ok(Some(ReplicaLoss::Part(name.to_owned())));
        match self.id() {
            Ok(found) if found == id => {}
            Ok(_) => return Ok(Some(ReplicaLoss::OtherVolume)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return part(IDENTITY),
            Err(error) if is_lost(&error) => {
                return if find_directory(self.path())?.is_some() {
                    part(IDENTITY)
                } else {
                    Ok(Some(ReplicaLoss::All))
                };
            }
            Err(error) => return Err(error),
        }
        let shared = self.present_shared_path()?;
        for (name, path) in [(SHARED, &shared), (LOGS, &self.path().join(LOGS))] {
            if !find_metadata(path)?.is_some_and(|found| found.is_dir()) {
                return part(name);
            }
        }
        Ok(SharedTree::find_missing_part(&shared)?.map(|part| lost_in_shared(&part)))
    }

    /// A replica that is not live may lack marks.
    fn find_lost_mark(&self, clients: impl IntoIterator<Item = u16>, is_live: bool) -> io::Result<Option<ReplicaLoss>> {
        let shared = self.present_shared_path()?;
        let lost = if is_live {
            SharedTree::find_missing_mark(&shared, clients)
        } else {
            SharedTree::find_replaced_mark(&shared, clients)
        };
        Ok(lost?.map(|part| lost_in_shared(&part)))
    }

    /// Reads the header of a client's log; none if the log is missing, of another type, too short or damaged.
    fn inspect_log(&self, id: u64, client: u16) -> io::Result<Option<InspectedLog>> {
        match LogFile::inspect(&self.log_path(client)) {
            Ok(log) => Ok(Some(log).filter(|log| (log.header.volume, log.header.client) == (id, client))),
            Err(error) if error.is_loss() => Ok(None),
            Err(LogFileError::Access(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

fn lost_in_shared(part: &str) -> ReplicaLoss {
    ReplicaLoss::Part(format!("{SHARED}/{part}"))
}

fn lost_log(client: u16) -> ReplicaLoss {
    ReplicaLoss::Part(format!("{LOGS}/{client}"))
}

/// The metadata of the directory of a replica; none if it is missing, or has another type. The directory may be a symbolic
/// link, for example to another disk.
fn find_directory(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Err(error) if is_lost(&error) => Ok(None),
        found => Ok(Some(found?).filter(Metadata::is_dir)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::process::Command;

    use super::*;
    use crate::log::{LOG_BYTES_MIN, LogHeader, RING_OFFSET};
    use crate::publish::PublishedMark;
    use crate::replica_file::remove_any;
    use crate::replica_file::tests::{OTHERS_FOR_DIRECTORY, OTHERS_FOR_FILE, exchange, restore};

    const ID: u64 = 7;
    const CLIENT: u16 = 3;
    const HEADER: LogHeader = LogHeader { volume: ID, client: CLIENT, ring_bytes: LOG_BYTES_MIN };

    /// A replica with the log of one client.
    fn replica() -> (tempfile::TempDir, VolumeDirectory) {
        let store = tempfile::tempdir().unwrap();
        let directory = VolumeDirectory::create(&store.path().join("data"), ID).unwrap();
        directory.ensure_log(&HEADER).unwrap();
        (store, directory)
    }

    /// The open files of a replica.
    struct OpenFiles {
        directory: File,
        tree: OpenTree,
        log: LogFile,
    }

    impl OpenFiles {
        fn of(directory: &VolumeDirectory) -> Self {
            let tree = OpenTree::open(&directory.shared_path());
            Self { directory: File::open(directory.path()).unwrap(), tree, log: directory.open_log(CLIENT).unwrap() }
        }

        fn find_loss(&self, directory: &VolumeDirectory, is_live: bool) -> Option<ReplicaLoss> {
            self.find_loss_at(directory, is_live, LogPoint::START)
        }

        /// As `find_loss`, with a log that is published up to a point.
        fn find_loss_at(&self, directory: &VolumeDirectory, is_live: bool, published: LogPoint) -> Option<ReplicaLoss> {
            let identity = FileIdentity::of(&self.log.try_clone_file().unwrap().metadata().unwrap());
            let logs = vec![OpenLogFile { client: CLIENT, identity, published }];
            let (tree, unopened_logs) = (&self.tree, vec![CLIENT + 1]);
            let open = OpenReplica { id: ID, directory: &self.directory, tree, logs, unopened_logs, is_live };
            directory.find_loss_of_open(&open).unwrap()
        }
    }

    fn part(name: &str) -> Option<ReplicaLoss> {
        Some(ReplicaLoss::Part(name.to_owned()))
    }

    #[test]
    fn each_lost_part_is_found() {
        for name in ["volume", "logs", "shared", "shared/tree", "shared/inodes", "shared/orphans", "shared/published"] {
            let (_store, directory) = replica();
            let open = OpenFiles::of(&directory);
            assert_eq!((directory.find_loss(ID, true).unwrap(), open.find_loss(&directory, true)), (None, None));
            let path = directory.path().join(name);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap()
            } else {
                fs::remove_file(path).unwrap()
            }
            assert_eq!(directory.find_loss(ID, false).unwrap(), part(name));
            assert_eq!(open.find_loss(&directory, false), part(name));
        }
        let (_store, directory) = replica();
        assert_eq!(directory.find_loss(ID + 1, true).unwrap(), Some(ReplicaLoss::OtherVolume));
        fs::remove_dir(directory.shared_path().join("inodes/c5")).unwrap();
        assert_eq!(directory.find_loss(ID, true).unwrap(), part("shared/inodes/c5"));
        fs::write(directory.path().join(IDENTITY), b"").unwrap();
        assert_eq!(directory.find_loss(ID, true).unwrap(), part(IDENTITY), "a crash has left an empty file");
        fs::remove_dir_all(directory.path()).unwrap();
        assert_eq!(directory.find_loss(ID, true).unwrap(), Some(ReplicaLoss::All));
    }

    #[test]
    fn a_part_of_another_type_is_lost() {
        let directories = ["logs", "shared", "shared/tree", "shared/inodes", "shared/orphans", "shared/published"];
        let files = ["volume", "logs/3", "shared/published/3"];
        let (_store, directory) = replica();
        let open = OpenFiles::of(&directory);
        let find_loss = |is_live| [directory.find_loss(ID, is_live).unwrap(), open.find_loss(&directory, is_live)];
        let cases = directories.map(|name| (name, OTHERS_FOR_DIRECTORY)).into_iter();
        for (name, others) in cases.chain(files.map(|name| (name, OTHERS_FOR_FILE))) {
            for replace in others {
                let path = directory.path().join(name);
                exchange(&path, replace);
                for is_live in [false, true] {
                    assert_eq!(find_loss(is_live), [part(name), part(name)], "{name}");
                }
                restore(&path);
                assert_eq!(find_loss(true), [None, None], "{name}");
            }
        }
        for replace in OTHERS_FOR_DIRECTORY {
            let path = directory.shared_path().join("inodes/05");
            exchange(&path, replace);
            assert_eq!(directory.find_loss(ID, false).unwrap(), part("shared/inodes/05"));
            restore(&path);
        }
        for replace in OTHERS_FOR_FILE {
            let path = directory.log_path(CLIENT + 1);
            replace(&path).unwrap();
            assert_eq!(find_loss(true), [part("logs/4"), part("logs/4")], "another type, although no log is open");
            remove_any(&path).unwrap();
        }
    }

    #[test]
    fn a_replica_in_whose_place_there_is_another_file_is_lost() {
        for (kind, replace) in OTHERS_FOR_DIRECTORY.into_iter().enumerate() {
            let (store, directory) = replica();
            let open = OpenFiles::of(&directory);
            exchange(directory.path(), replace);
            // The second kind is a symbolic link to the replica, for example on another disk.
            let expected = (kind != 1).then_some(ReplicaLoss::All);
            assert_eq!(directory.find_loss(ID, true).unwrap(), expected);
            assert_eq!(open.find_loss(&directory, true), expected);
            assert_eq!(directory.set_aside(ID).unwrap(), Some(store.path().join("data.0000000000000007")));
            VolumeDirectory::create(directory.path(), ID).unwrap();
        }
    }

    #[test]
    fn a_tree_that_is_being_replaced_is_not_lost() {
        let (_store, directory) = replica();
        fs::rename(directory.shared_path(), directory.old_shared_path()).unwrap();
        assert_eq!(directory.find_loss(ID, true).unwrap(), None);
        assert_eq!(directory.find_loss(ID, false).unwrap(), None);
    }

    #[test]
    fn a_mark_is_lost_only_from_a_live_replica() {
        for cut in [|path: &Path| fs::remove_file(path), |path: &Path| fs::write(path, b"")] {
            let (_store, directory) = replica();
            let open = OpenFiles::of(&directory);
            cut(&directory.shared_path().join("published/3")).unwrap();
            assert_eq!((directory.find_loss(ID, false).unwrap(), open.find_loss(&directory, false)), (None, None));
            assert_eq!(directory.find_loss(ID, true).unwrap(), part("shared/published/3"));
            assert_eq!(open.find_loss(&directory, true), part("shared/published/3"));
        }
    }

    #[test]
    fn a_damaged_mark_of_an_open_live_replica_is_found() {
        const MARK_BYTES: usize = 4096;
        let (_store, directory) = replica();
        let open = OpenFiles::of(&directory);
        // Another mark, which is not damaged.
        let point = LogPoint { sequence: 2, position: 64 };
        let mut mark = directory.open_shared().unwrap().open_mark(CLIENT).unwrap();
        mark.write(PublishedMark { point, ..mark.mark() }).unwrap();
        let path = directory.shared_path().join("published/3");
        let whole = fs::read(&path).unwrap();
        for (damaged, expected) in
            [(&[0][..], None), (&[1], part("shared/published/3")), (&[0, 1], part("shared/published/3"))]
        {
            let mut bytes = whole.clone();
            damaged.iter().for_each(|slot| bytes[slot * MARK_BYTES..][..MARK_BYTES].fill(0));
            fs::write(&path, bytes).unwrap();
            let find_loss = |is_live| open.find_loss_at(&directory, is_live, point);
            assert_eq!((find_loss(true), find_loss(false)), (expected, None), "{damaged:?}");
        }
    }

    #[test]
    fn a_log_that_is_missing_or_short_or_of_another_client_is_lost() {
        let set_length = |path: &Path, bytes| OpenOptions::new().write(true).open(path)?.set_len(bytes);
        let empty = |path: &Path| set_length(path, 0);
        let short = |path: &Path| set_length(path, RING_OFFSET + LOG_BYTES_MIN - 1);
        let grown_again = |path: &Path| {
            set_length(path, 0)?;
            set_length(path, RING_OFFSET + LOG_BYTES_MIN)
        };
        let of_another_client = |path: &Path| {
            fs::remove_file(path)?;
            LogFile::create(path, &LogHeader { client: CLIENT + 1, ..HEADER })
        };
        type DamageCase<'a> = &'a dyn Fn(&Path) -> io::Result<()>;
        let damages: [DamageCase<'_>; 4] = [&empty, &short, &grown_again, &of_another_client];
        for damage in damages {
            let (_store, directory) = replica();
            let open = OpenFiles::of(&directory);
            damage(&directory.log_path(CLIENT)).unwrap();
            assert_eq!(directory.find_loss(ID, false).unwrap(), part("logs/3"));
            assert_eq!(open.find_loss(&directory, false), part("logs/3"));
        }
        let (_store, directory) = replica();
        let open = OpenFiles::of(&directory);
        fs::remove_file(directory.log_path(CLIENT)).unwrap();
        assert_eq!(directory.find_loss(ID, true).unwrap(), None, "a log that was never created looks the same");
        assert_eq!(open.find_loss(&directory, true), part("logs/3"));
    }

    /// A copy has the same id and the same contents.
    #[test]
    fn a_part_that_another_one_has_replaced_is_found() {
        let replaced =
            |directory: &VolumeDirectory, name: &str| Some(ReplicaLoss::Replaced(directory.path().join(name)));
        let (store, directory) = replica();
        let open = OpenFiles::of(&directory);
        let (log, copy) = (directory.log_path(CLIENT), store.path().join("copy"));
        fs::rename(&log, &copy).unwrap();
        fs::copy(&copy, &log).unwrap();
        assert_eq!(open.find_loss(&directory, true), replaced(&directory, "logs/3"));
        fs::rename(&copy, &log).unwrap();
        assert_eq!(open.find_loss(&directory, true), None);

        fs::rename(directory.shared_path(), &copy).unwrap();
        SharedTree::create(&directory.shared_path()).unwrap();
        directory.open_shared().unwrap().create_mark(CLIENT).unwrap();
        assert_eq!(open.find_loss(&directory, true), replaced(&directory, "shared/tree"));
        assert_eq!(open.find_loss(&directory, false), None, "a replica that catches up replaces its tree");

        fs::remove_dir_all(directory.shared_path()).unwrap();
        fs::rename(&copy, directory.shared_path()).unwrap();
        assert_eq!(open.find_loss(&directory, true), None);
        for name in ["inodes", "orphans", "published"] {
            let path = directory.shared_path().join(name);
            fs::rename(&path, &copy).unwrap();
            assert!(Command::new("cp").arg("-a").args([&copy, &path]).status().unwrap().success());
            assert_eq!(open.find_loss(&directory, true), replaced(&directory, &format!("shared/{name}")));
            fs::remove_dir_all(&path).unwrap();
            fs::rename(&copy, &path).unwrap();
            assert_eq!(open.find_loss(&directory, true), None);
        }
        fs::rename(directory.shared_path().join("inodes/05"), &copy).unwrap();
        fs::create_dir(directory.shared_path().join("inodes/05")).unwrap();
        assert_eq!(open.find_loss(&directory, true), replaced(&directory, "shared/inodes"));

        fs::rename(directory.path(), store.path().join("away")).unwrap();
        VolumeDirectory::create(directory.path(), ID).unwrap();
        directory.ensure_log(&HEADER).unwrap();
        assert_eq!(open.find_loss(&directory, false), Some(ReplicaLoss::Replaced(directory.path().to_owned())));
    }
}
