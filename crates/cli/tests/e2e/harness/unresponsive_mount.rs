//! `UnresponsiveMount`: a FUSE file system whose server does not answer, like a server after SIGSTOP. Tests mount it in
//! a mount namespace of their own, so that nothing else on the machine hangs.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use farfork_sys::process::SystemCall;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::scratch::TestDirectory;
use super::wait::wait_until;
use super::{print_error, scratch};

/// Size of the buffer for requests. The kernel does not return a request to a buffer that may be too small.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Size of `fuse_out_header` and `fuse_init_out` in protocol 7.31.
const INIT_REPLY_BYTES: usize = 16 + 64;
const PROTOCOL: (u32, u32) = (7, 31);

/// Number of statfs(2) (`<asm/unistd_64.h>`).
const STATFS: u64 = 137;
/// Longest wait until the caller is in statfs(2).
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A mounted file system that does not answer. Dropping it aborts and unmounts it.
pub(crate) struct UnresponsiveMount {
    directory: TestDirectory,
    /// A process that waits for the result of statfs(2).
    caller: Child,
    server: File,
}

impl UnresponsiveMount {
    /// Mounts a file system of this type (`fuse`, or `fuse.` and a name). Waits until a call hangs.
    pub(crate) fn new(filesystem: &str) -> Self {
        let directory = scratch::directory();
        let mut server = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("no NUL");
        mount("farfork:test", directory.path(), filesystem, MountFlags::NODEV, Some(options.as_c_str()))
            .expect("root may mount");
        let answered = answer_init(&mut server);
        let caller = Command::new("stat").arg("--file-system").arg(directory.path()).stdout(Stdio::null()).spawn();
        let mut mounted = Self { directory, caller: caller.expect("stat"), server };
        answered.expect("the first request is FUSE_INIT");
        mounted.wait_for_call();
        mounted
    }

    /// Waits until the caller is in statfs(2).
    fn wait_for_call(&mut self) {
        let tid = self.caller.id().cast_signed();
        wait_until("statfs(2) waits for the file system", CALL_LIMIT, || {
            self.require_hanging();
            SystemCall::read(tid).ok().flatten().filter(|call| call.number == STATFS)
        });
    }

    /// The directory at which the file system is mounted.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a thread that reads requests without answering them. A process that waits for such a request cannot be
    /// killed.
    pub(crate) fn take_requests(&self) {
        let mut server = self.server.try_clone().expect("a descriptor");
        // read(2) fails when the file system is aborted.
        thread::spawn(move || {
            let mut request = vec![0; REQUEST_BYTES_MAX];
            while server.read(&mut request).is_ok() {}
        });
    }

    /// Requires that the caller's statfs(2) has not returned.
    pub(crate) fn require_hanging(&mut self) {
        let ended = self.caller.try_wait().expect("a child of ours");
        assert!(ended.is_none(), "statfs(2) has returned: {ended:?}");
    }
}

fn answer_init(server: &mut File) -> io::Result<()> {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let length = server.read(&mut request)?;
    // The request header has the length and the opcode before the request's id.
    let number = request[..length].get(8..16).ok_or(io::ErrorKind::InvalidData)?;
    let mut reply = vec![0; INIT_REPLY_BYTES];
    reply[..4].copy_from_slice(&(INIT_REPLY_BYTES as u32).to_ne_bytes());
    reply[8..16].copy_from_slice(number);
    reply[16..20].copy_from_slice(&PROTOCOL.0.to_ne_bytes());
    reply[20..24].copy_from_slice(&PROTOCOL.1.to_ne_bytes());
    server.write_all(&reply)
}

impl Drop for UnresponsiveMount {
    fn drop(&mut self) {
        // MNT_FORCE fails all calls with ENOTCONN first, so that unmounting does not wait.
        if let Err(error) = unmount(self.directory.path(), UnmountFlags::FORCE | UnmountFlags::DETACH) {
            print_error(format_args!("the file system of a test is still mounted: {error}"));
        }
        let _ = self.caller.kill();
        let _ = self.caller.wait();
    }
}
