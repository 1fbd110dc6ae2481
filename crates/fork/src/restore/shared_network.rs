//! Finds the sockets by which a child would take its parent's traffic in a network that both share.

use farfork_sys::socket_abi::{SO_REUSEADDR, SO_REUSEPORT, SOCK_DGRAM, SOL_SOCKET};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket};

/// Returns the first socket, as descriptor and address, whose port the kernel lets child and parent share: the child
/// would get a part of the parent's traffic. Other ports that the parent still uses are refused by bind(2).
pub fn find_port_conflict(descriptor: &Descriptor) -> Option<String> {
    descriptor.open_files.iter().enumerate().find_map(|(index, file)| match file {
        OpenFile::Socket(socket) if can_share_port(socket) => {
            let address = socket.internet_bind_address()?;
            let files = descriptor.file_descriptors.iter();
            let members = descriptor.descendants.iter().flat_map(|member| &member.file_descriptors);
            let found = files.chain(members).find(|file| file.open_file == index as u32);
            Some(
                found
                    .map_or_else(|| format!("a socket at {address}"), |file| format!("fd {} ({address})", file.number)),
            )
        }
        _ => None,
    })
}

/// Whether the child has sockets with network addresses, which are valid in only one network.
pub fn has_bound_sockets(descriptor: &Descriptor) -> bool {
    descriptor.open_files.iter().any(|file| matches!(file, OpenFile::Socket(socket) if socket.has_address()))
}

fn can_share_port(socket: &Socket) -> bool {
    let has = |name: u32| {
        let is_it = |level: u32, found: u32| (level, found) == (SOL_SOCKET, name);
        socket
            .options
            .iter()
            .any(|option| is_it(option.level, option.name) && option.value.iter().any(|byte| *byte != 0))
    };
    has(SO_REUSEPORT) || (socket.kind == SOCK_DGRAM && has(SO_REUSEADDR))
}
