//! Validates a process's resources other than memory and files: timers, filters, locks, sockets. The restorer passes them to
//! system calls. This module does not check what only the kernel can check.

use super::validate::{ProcessView, require};
use super::{
    DescendantProcess, Descriptor, InvalidDescriptor, OpenFile, SharedObjectKind, Socket, SocketOption, SocketState,
    TERMINAL_NUMBER_MAX, TERMINAL_SETTINGS_BYTES, TimerSpec, VDSO_BYTES_MAX,
};

/// Highest number of a POSIX timer or an inotify watch. The restorer creates timers or watches until it reaches a number, so
/// a higher number would take too long.
pub const RESTORED_NUMBER_MAX: u32 = 100_000;

/// Largest socket address, in bytes: `struct sockaddr_storage`.
const ADDRESS_BYTES_MAX: usize = 128;

/// Largest value of a socket option other than a filter, in bytes: the longest value that a capture reads.
const OPTION_BYTES_MAX: usize = 256;

/// Level and name of the option that is a filter: SOL_SOCKET, SO_ATTACH_FILTER.
const FILTER_OPTION: (u32, u32) = (1, 26);

/// Maximum number of open files that a message passes: the kernel's SCM_MAX_FD.
const MESSAGE_FDS_MAX: usize = 253;

/// Largest System V message, in bytes. The kernel's msgmax is rarely set higher.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Largest filter, in bytes: the kernel's BPF_MAXINSNS instructions of 8 bytes.
const FILTER_BYTES_MAX: usize = 4096 * 8;

/// The kernel's highest signal number.
const SIGNAL_MAX: u32 = 64;

/// Number of interval timers that a process has.
const INTERVAL_TIMER_COUNT: u32 = 3;

/// Longest time that the kernel can represent, in nanoseconds.
const TIME_NS_MAX: u64 = i64::MAX as u64;

impl Descriptor {
    pub(super) fn validate_resources(&self) -> Result<(), InvalidDescriptor> {
        let vdso_bytes = self.origin.vdso_image.len();
        require(vdso_bytes <= VDSO_BYTES_MAX, || format!("its vdso has {vdso_bytes} bytes, {VDSO_BYTES_MAX} at most"))?;
        self.validate_timer_files()?;
        self.validate_inotifies()?;
        self.validate_sockets()?;
        self.validate_terminals()?;
        self.validate_system_v()?;
        for (index, object) in self.shared_objects.iter().enumerate() {
            if let SharedObjectKind::PosixShm { path, .. } = &object.kind {
                require(path.starts_with("/dev/shm/") && !path.contains("/.."), || {
                    format!("shared object {index} has the path {path}")
                })?;
            }
        }
        Ok(())
    }

    fn validate_timer_files(&self) -> Result<(), InvalidDescriptor> {
        require_valid_times(self.open_files.iter().filter_map(|file| match file {
            OpenFile::TimerFd { time, .. } => Some(*time),
            _ => None,
        }))
    }

    fn validate_inotifies(&self) -> Result<(), InvalidDescriptor> {
        for file in &self.open_files {
            let OpenFile::Inotify { watches, .. } = file else { continue };
            let mut lowest = 1;
            for watch in watches {
                let fits = watch.number >= lowest && watch.number <= RESTORED_NUMBER_MAX;
                require(fits, || format!("inotify watch {} is out of order or too high", watch.number))?;
                lowest = watch.number + 1;
            }
        }
        Ok(())
    }

    fn validate_sockets(&self) -> Result<(), InvalidDescriptor> {
        let sockets = self.open_files.iter().filter_map(|file| match file {
            OpenFile::Socket(socket) => Some(socket),
            _ => None,
        });
        let sockets: Vec<&Socket> = sockets.collect();
        let mut ends = Vec::new();
        for socket in &sockets {
            let addresses = match &socket.state {
                SocketState::Unconnected { address, peer } | SocketState::UnixPeerOutside { address, peer, .. } => {
                    vec![address, peer]
                }
                SocketState::Listening { address, .. }
                | SocketState::Disconnected { address, .. }
                | SocketState::ShutDown { address } => vec![address],
                SocketState::UnixPaired { pair, end, through, address } => {
                    require(*end < 2 && !ends.contains(&(*pair, *end)), || {
                        format!("end {end} of socket pair {pair} is invalid or occurs twice")
                    })?;
                    ends.push((*pair, *end));
                    vec![through, address]
                }
                SocketState::TcpPaired { pair, end, address, peer } => {
                    require(*end < 2 && !ends.contains(&(*pair, *end)), || {
                        format!("end {end} of socket pair {pair} is invalid or occurs twice")
                    })?;
                    require(!address.is_empty() && !peer.is_empty(), || format!("socket pair {pair} has no address"))?;
                    ends.push((*pair, *end));
                    vec![address, peer]
                }
                SocketState::PeerOutside { .. } => Vec::new(),
                SocketState::PendingAccept { address, through, .. } => {
                    require(!through.is_empty(), || "a pending connection has no listening socket".to_owned())?;
                    vec![address, through]
                }
            };
            let has_family = |address: &Vec<u8>| address.is_empty() || address.len() > 2;
            let short = addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX && has_family(address));
            let options = socket.options.iter().all(has_valid_length);
            require(short && options, || "an address or option of a socket has an invalid length".to_owned())?;
            let file = socket.file.as_ref();
            let is_absolute = file.and_then(|file| file.path.as_ref()).is_none_or(|path| path.starts_with('/'));
            require(is_absolute && file.is_some() == socket.bind_path().is_some(), || {
                "a socket's file has a relative path, or does not match the socket's address".to_owned()
            })?;
            self.validate_messages(socket)?;
        }
        Ok(())
    }

    /// Checks that the open files of each message exist, and that only messages of Unix sockets have files or a sender.
    fn validate_messages(&self, socket: &Socket) -> Result<(), InvalidDescriptor> {
        const UNIX: u32 = 1;
        for message in &socket.received_messages {
            let are_open = message.files.iter().all(|file| (*file as usize) < self.open_files.len());
            let fits = are_open && message.files.len() <= MESSAGE_FDS_MAX;
            let is_plain = message.files.is_empty() && message.sender.is_none();
            require(fits && (is_plain || socket.family == UNIX), || {
                format!(
                    "a socket's message with {} open files: files are too many or missing, or the socket is not a Unix socket",
                    message.files.len()
                )
            })?;
        }
        Ok(())
    }

    /// Checks that each id is one that the kernel may use, that no set is empty, and that messages have a valid type and
    /// length.
    fn validate_system_v(&self) -> Result<(), InvalidDescriptor> {
        let sets = self.semaphore_sets.iter().map(|set| (set.id, !set.values.is_empty()));
        let is_message = |(kind, text): &(i64, Vec<u8>)| *kind > 0 && text.len() <= MESSAGE_BYTES_MAX;
        let queues = self.message_queues.iter().map(|queue| (queue.id, queue.messages.iter().all(is_message)));
        for (id, is_whole) in sets.chain(queues) {
            require(is_whole && i32::try_from(id).is_ok(), || {
                format!("System V object {id} has an invalid id or content")
            })?;
        }
        Ok(())
    }

    /// Checks the numbers and settings of terminals. Also checks that each terminal has exactly one master, that paths
    /// match, and that each session exists and has at most one terminal.
    fn validate_terminals(&self) -> Result<(), InvalidDescriptor> {
        let mut lowest = 0;
        for terminal in &self.terminals {
            let number = terminal.number;
            let fits = number >= lowest && number <= TERMINAL_NUMBER_MAX;
            let is_whole = terminal.settings.len() == TERMINAL_SETTINGS_BYTES;
            require(fits && is_whole, || format!("terminal {number} is out of order, too high, or without settings"))?;
            lowest = number + 1;
        }
        let sessions: Vec<_> = self.terminals.iter().filter_map(|terminal| terminal.session).collect();
        for (index, session) in sessions.iter().enumerate() {
            let is_new = sessions[..index].iter().all(|other| other.leader != session.leader);
            let is_whole = is_new && self.has_session(session.leader) && self.has_process_group(session.foreground);
            require(is_whole, || {
                format!(
                    "session {} has several terminals, or its leader or foreground group is missing",
                    session.leader
                )
            })?;
        }
        let mut masters = vec![0; self.terminals.len()];
        for file in &self.open_files {
            let OpenFile::Terminal { terminal, path, is_master, .. } = file else { continue };
            let pseudo_terminal = self.terminals.get(*terminal as usize);
            let is_right = pseudo_terminal.is_some_and(|pseudo_terminal| match is_master {
                true => ["/dev/ptmx", "/dev/pts/ptmx"].contains(&path.as_str()),
                false => *path == format!("/dev/pts/{}", pseudo_terminal.number),
            });
            require(is_right, || format!("{path} is not the path of an end of its terminal"))?;
            masters[*terminal as usize] += u32::from(*is_master);
        }
        require(masters.iter().all(|count| *count == 1), || "a terminal must have exactly one master".to_owned())
    }
}

fn has_valid_length(option: &SocketOption) -> bool {
    let bytes = option.value.len();
    match (option.level, option.name) == FILTER_OPTION {
        true => is_filter_length(bytes),
        false => bytes <= OPTION_BYTES_MAX,
    }
}

/// Whether a filter may have this length: it has whole instructions of 8 bytes.
fn is_filter_length(bytes: usize) -> bool {
    bytes > 0 && bytes <= FILTER_BYTES_MAX && bytes.is_multiple_of(8)
}

impl Descriptor {
    /// Whether a living process leads the session with this id.
    fn has_session(&self, leader: u32) -> bool {
        let leads = |member: &DescendantProcess| member.process.pid == leader && member.relations.session == leader;
        self.process.pid == leader || self.descendants.iter().any(leads)
    }

    /// Whether a living or ended process of the tree is in the process group with this id.
    fn has_process_group(&self, group: u32) -> bool {
        let relations = self
            .descendants
            .iter()
            .map(|member| &member.relations)
            .chain(self.zombies.iter().map(|one| &one.relations));
        self.process.pid == group || relations.into_iter().any(|process_relations| process_relations.group == group)
    }
}

impl ProcessView<'_> {
    /// Checks the resources of one process other than memory and files.
    pub(super) fn validate_process_resources(&self) -> Result<(), InvalidDescriptor> {
        self.validate_timers()?;
        self.validate_filters()?;
        self.validate_locks()
    }

    fn validate_timers(&self) -> Result<(), InvalidDescriptor> {
        for timer in &self.process.interval_timers {
            require(timer.which < INTERVAL_TIMER_COUNT, || format!("interval timer {} does not exist", timer.which))?;
        }
        let mut lowest = 0;
        for timer in &self.process.posix_timers {
            let has_target = timer.tid == 0 || self.threads.iter().any(|thread| thread.tid == timer.tid);
            let fits =
                timer.id >= lowest && timer.id <= RESTORED_NUMBER_MAX && timer.signal <= SIGNAL_MAX && has_target;
            require(fits, || {
                format!("POSIX timer {} is out of order, too high, or has an invalid signal or thread", timer.id)
            })?;
            lowest = timer.id + 1;
        }
        let own = self.process.interval_timers.iter().map(|timer| timer.time);
        let posix = self.process.posix_timers.iter().map(|timer| timer.time);
        require_valid_times(own.chain(posix))
    }

    fn validate_filters(&self) -> Result<(), InvalidDescriptor> {
        for (index, filter) in self.process.seccomp_filters.iter().enumerate() {
            let bytes = filter.instructions.len();
            require(is_filter_length(bytes), || {
                format!("seccomp filter {index} has an invalid length of {bytes} bytes")
            })?;
        }
        let count = self.process.seccomp_filters.len();
        let mut used = self.threads.iter().flat_map(|thread| &thread.seccomp_filters);
        require(used.all(|index| (*index as usize) < count), || "a seccomp filter is missing".to_owned())
    }

    fn validate_locks(&self) -> Result<(), InvalidDescriptor> {
        let is_open = |number: u32| self.file_descriptors.binary_search_by_key(&number, |entry| entry.number).is_ok();
        for lock in self.file_locks {
            let end = lock.start.checked_add(lock.bytes);
            let fits = is_open(lock.number) && end.is_some_and(|end| i64::try_from(end).is_ok());
            require(fits, || format!("a lock of fd {} has an invalid range, or the fd is not open", lock.number))?;
        }
        for owner in self.file_owners {
            let is_thread = owner.tid == 0 || self.threads.iter().any(|thread| thread.tid == owner.tid);
            let fits = is_open(owner.number) && is_thread && owner.signal <= SIGNAL_MAX;
            require(fits, || format!("the signal owner of fd {} is invalid, or the fd is not open", owner.number))?;
        }
        Ok(())
    }
}

fn require_valid_times(mut times: impl Iterator<Item = TimerSpec>) -> Result<(), InvalidDescriptor> {
    let fit = times.all(|time| time.remaining_ns <= TIME_NS_MAX && time.interval_ns <= TIME_NS_MAX);
    require(fit, || "a timer's time exceeds the limit".to_owned())
}
