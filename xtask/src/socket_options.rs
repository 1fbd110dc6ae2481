//! `cargo xtask socket-options`: updates the differ's file of names of socket options, from the kernel headers of this
//! machine.
//!
//! The file keeps options that these headers lack, because a kernel may be newer than the headers. The differ reads each
//! number of a level, with or without a name, so it also compares an option that is missing from the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// The file with the names, which is compiled into the differ.
const FILE: &str = "crates/differ/src/observer/socket_options.txt";

/// The directory of the kernel's headers.
const HEADERS: &str = "/usr/include";

const HEAD: &str = "# Socket options by level: written by `cargo xtask socket-options` from the kernel's headers.\n\
                    # Names for the differ only; crates/fork/src/capture/files/sockets/options.rs lists the carried options.\n\
                    # level, its number, option, its number\n";

/// Highest option number of a level. Greater numbers are other constants.
const NUMBER_MAX: u32 = 127;

/// A header that defines the options of a level.
struct Header {
    path: &'static str,
    level: &'static str,
    level_number: u32,
    prefixes: &'static [&'static str],
    /// The first option. Other constants with these prefixes precede it.
    first: &'static str,
}

const HEADER_LIST: [Header; 8] = [
    Header {
        path: "asm-generic/socket.h",
        level: "SOL_SOCKET",
        level_number: 1,
        prefixes: &["SO_", "SCM_"],
        first: "SO_DEBUG",
    },
    Header { path: "linux/in.h", level: "SOL_IP", level_number: 0, prefixes: &["IP_", "MCAST_"], first: "IP_TOS" },
    Header {
        path: "linux/in6.h",
        level: "SOL_IPV6",
        level_number: 41,
        prefixes: &["IPV6_", "MCAST_"],
        first: "IPV6_ADDRFORM",
    },
    Header { path: "linux/tcp.h", level: "SOL_TCP", level_number: 6, prefixes: &["TCP_"], first: "TCP_NODELAY" },
    Header { path: "linux/udp.h", level: "SOL_UDP", level_number: 17, prefixes: &["UDP_"], first: "UDP_CORK" },
    Header {
        path: "linux/netlink.h",
        level: "SOL_NETLINK",
        level_number: 270,
        prefixes: &["NETLINK_"],
        first: "NETLINK_ADD_MEMBERSHIP",
    },
    Header { path: "linux/tls.h", level: "SOL_TLS", level_number: 282, prefixes: &["TLS_"], first: "TLS_TX" },
    Header { path: "linux/mptcp.h", level: "SOL_MPTCP", level_number: 284, prefixes: &["MPTCP_"], first: "MPTCP_INFO" },
];

/// Names of level and option, by the numbers of level and option.
type Options = BTreeMap<(u32, u32), (String, String)>;

/// Adds the options of the headers to the file.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(FILE);
    let mut options = parse_file(&fs::read_to_string(&path).unwrap_or_default());
    options.extend(of_headers(Path::new(HEADERS))?);
    let mut text = HEAD.to_owned();
    for ((level_number, number), (level, name)) in &options {
        writeln!(text, "{level} {level_number} {name} {number}").context("text")?;
    }
    fs::write(&path, text).with_context(|| FILE.to_owned())
}

fn of_headers(directory: &Path) -> Result<Options> {
    let mut options = Options::new();
    for header in &HEADER_LIST {
        let path = directory.join(header.path);
        let text = fs::read_to_string(&path).with_context(|| format!("{}: install linux-libc-dev", path.display()))?;
        for (name, number) in of_header(&text, header) {
            // Keep the first name of a number: later constants with the same number are values of options.
            options.entry((header.level_number, number)).or_insert((header.level.to_owned(), name));
        }
    }
    Ok(options)
}

fn of_header(text: &str, header: &Header) -> Vec<(String, u32)> {
    let definitions = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("#define")?.split_whitespace();
        let (name, number) = (words.next()?, words.next()?.parse().ok()?);
        let is_constant = !name.contains('(');
        let has_prefix = header.prefixes.iter().any(|prefix| name.starts_with(prefix));
        let is_option = is_constant && has_prefix && number <= NUMBER_MAX;
        is_option.then(|| (name.to_owned(), number))
    });
    definitions.skip_while(|(name, _)| name != header.first).collect()
}

fn parse_file(text: &str) -> Options {
    let option = |line: &str| {
        let [level, level_number, name, number] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(((level_number.parse().ok()?, number.parse().ok()?), (level.to_owned(), name.to_owned())))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_lists_all_socket_options_of_the_headers() {
        let file = fs::read_to_string(Workspace::of_this_build().root().join(FILE)).unwrap();
        let known = parse_file(&file);
        let options = of_headers(Path::new(HEADERS)).unwrap().into_iter();
        let missing: Vec<_> = options.filter(|(key, value)| known.get(key) != Some(value)).collect();
        assert!(missing.is_empty(), "run `cargo xtask socket-options`: {missing:?}");
    }

    #[test]
    fn options_start_with_the_first_of_the_level() {
        let text = "#define NETLINK_ROUTE\t0\t/* x */\n#define NETLINK_ADD_MEMBERSHIP\t1\n#define NETLINK_PKTINFO 3\n\
                    #define NETLINK_SIZE(a) 3\n#define NETLINK_BIG 1024\n";
        let netlink = HEADER_LIST.iter().find(|header| header.level == "SOL_NETLINK").unwrap();
        let names = [("NETLINK_ADD_MEMBERSHIP".to_owned(), 1), ("NETLINK_PKTINFO".to_owned(), 3)];
        assert_eq!(of_header(text, netlink), names);
    }
}
