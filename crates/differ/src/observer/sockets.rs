//! Sockets: addresses, and every option of every level of a carried socket. Options are read by number, so that options
//! that a later kernel adds are read too.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

use farfork_sys::socket;

use super::{ObservationBuilder, bytes_text};

/// Names of options; `cargo xtask socket-options` writes it.
const OPTIONS: &str = include_str!("socket_options.txt");

/// Options of a level that are asked for: those above are of netfilter and the like, and no state of a socket.
const NUMBER_MAX: u32 = 127;

/// Options that are not read, with the reason.
const OPTIONS_SKIPPED: [(&str, &str); 17] = [
    ("SO_ERROR", "reading it clears it"),
    ("SO_PEERPIDFD", "reading it makes a descriptor"),
    ("SO_ATTACH_FILTER", "SO_GET_FILTER has its number: it is counted in instructions: `filter` has it"),
    ("SO_COOKIE", "the kernel's own number of the socket"),
    ("SO_MEMINFO", "memory in use just now"),
    ("TCP_INFO", "counts and times, which change by themselves"),
    ("TCP_CC_INFO", "counts and times, which change by themselves"),
    ("TCP_QUEUE_SEQ", "where the stream is just now"),
    ("TCP_WINDOW_CLAMP", "follows from SO_RCVBUF as data comes"),
    ("TCP_QUICKACK", "changes by itself"),
    ("TCP_TIMESTAMP", "a clock"),
    ("TCP_SAVED_SYN", "reading it frees it"),
    ("TCP_ZEROCOPY_RECEIVE", "it acts"),
    ("TCP_AO_GET_KEYS", "it needs input"),
    ("MPTCP_INFO", "counts and times, which change by themselves"),
    ("IP_PROTOCOL", "of connected sockets it tells of something else"),
    ("IP_PKTOPTIONS", "it tells of the last packet"),
];

/// `ucred`: the id of a process first.
const PEER_CREDENTIALS: &str = "SO_PEERCRED";

struct OptionLevel {
    name: &'static str,
    number: u32,
    options: HashMap<u32, &'static str>,
}

static LEVELS: LazyLock<Vec<OptionLevel>> = LazyLock::new(|| {
    let mut levels: Vec<OptionLevel> = Vec::new();
    for line in OPTIONS.lines().filter(|line| !line.starts_with('#')) {
        let [level, level_number, name, number] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let (Ok(level_number), Ok(number)) = (level_number.parse(), number.parse()) else { continue };
        if levels.last().is_none_or(|last| last.number != level_number) {
            levels.push(OptionLevel { name: level, number: level_number, options: HashMap::new() });
        }
        levels.last_mut().expect("one was pushed").options.insert(number, name);
    }
    levels
});

/// Reads a socket's addresses and options.
pub(super) fn read_socket(socket: BorrowedFd<'_>, field: &str, fields: &mut ObservationBuilder) {
    fields.put_result(&format!("{field}/own address"), socket::local_address(socket).map(|bytes| bytes_text(&bytes)));
    fields.put_result(&format!("{field}/peer address"), socket::peer_address(socket).map(|bytes| bytes_text(&bytes)));
    fields.put_result(&format!("{field}/filter"), socket::read_filter(socket).map(|bytes| bytes_text(&bytes)));
    for level in LEVELS.iter() {
        for number in 0..=NUMBER_MAX {
            let name = level.options.get(&number).copied();
            if name.is_some_and(|name| OPTIONS_SKIPPED.iter().any(|(unread, _)| *unread == name)) {
                continue;
            }
            // A socket that lacks an option says so of each number; only what some socket has is of interest.
            let Ok(value) = socket::read_option(socket, level.number, number) else { continue };
            let value = match name {
                Some(PEER_CREDENTIALS) => {
                    let id = fields.names.translate_text(&bytes_text(&value[..4]));
                    format!("{id} {}:{}", bytes_text(&value[4..8]), bytes_text(&value[8..]))
                }
                _ => bytes_text(&value),
            };
            let name = name.map_or_else(|| number.to_string(), str::to_owned);
            fields.put(&format!("{field}/option/{}/{name}", level.name), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_name() {
        for (name, reason) in OPTIONS_SKIPPED {
            assert!(LEVELS.iter().any(|level| level.options.values().any(|known| *known == name)), "{name}");
            assert!(!reason.is_empty());
        }
        assert!(LEVELS.len() >= 8);
    }
}
