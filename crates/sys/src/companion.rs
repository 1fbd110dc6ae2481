//! Runs code in a companion: a process that shares memory and open files with the process that starts it. If that process is
//! killed, the companion continues until the end of its current critical section.
//!
//! Locks are shared. A lock that a thread of the killed owner held stays locked. A critical section that waits for such a
//! lock ends after `ORPHAN_LIMIT_US`.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::zeroed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// How long a critical section may continue after the owner has ended, in microseconds.
const ORPHAN_LIMIT_US: libc::suseconds_t = 500_000;

const PAGE_BYTES: usize = 4096;

/// The signal that informs a companion of its owner's end: a real-time signal that nothing else in this program uses.
fn owner_ended_signal() -> i32 {
    libc::SIGRTMAX() - 1
}

thread_local! {
    /// The owner's process id in a companion, elsewhere 0.
    static OWNER: AtomicI32 = const { AtomicI32::new(0) };
    static IS_CRITICAL: AtomicBool = const { AtomicBool::new(false) };
    static IS_ORPHAN: AtomicBool = const { AtomicBool::new(false) };
}

/// Returns the process to which this memory belongs: in a companion its owner, elsewhere the caller.
pub fn owner_pid() -> i32 {
    match OWNER.with(|owner| owner.load(Ordering::Relaxed)) {
        0 => std::process::id().cast_signed(),
        owner => owner,
    }
}

/// Whether the caller is a companion whose owner has ended. Then no process waits for the companion's results.
pub fn is_orphan() -> bool {
    IS_ORPHAN.with(|is_orphan| is_orphan.load(Ordering::SeqCst))
}

/// While a `CriticalSection` exists, the companion outlives its owner, for at most half a second.
#[derive(Debug)]
pub struct CriticalSection {
    _not_send: std::marker::PhantomData<*const ()>,
}

impl CriticalSection {
    /// Begins a critical section. It has no effect outside of a companion. Sections cannot be nested.
    pub fn enter() -> Self {
        IS_CRITICAL.with(|is_critical| is_critical.store(true, Ordering::SeqCst));
        Self { _not_send: std::marker::PhantomData }
    }
}

impl Drop for CriticalSection {
    fn drop(&mut self) {
        IS_CRITICAL.with(|is_critical| is_critical.store(false, Ordering::SeqCst));
        // Check after the store: if the signal arrives later, its handler ends the companion.
        if is_orphan() {
            exit_companion();
        }
    }
}

//  owner    -- run_companion ----- one thread waits ---------------> continues
//                +> companion -- life -- critical section -- life --> ends
//  owner killed:                 |              +- ends here
//                +- ends at once +
//
// clone(2) makes the companion with CLONE_VM and CLONE_FILES, without CLONE_THREAD. The thread that starts the companion
// sleeps until the companion has ended. So the companion can use that thread's local storage, and everything else that the C
// library keeps per thread. (With CLONE_VFORK the thread would sleep uninterruptibly, which counts towards the machine's
// load.)
//
// State that the kernel keeps per process belongs to the companion: timers (timer_create(2)), children, tracees, and
// threads. Threads that the companion starts end with it. Threads from `spawn_in_owner` outlive the companion.

/// Runs `life` in a companion with a stack of this many bytes, and returns when the companion has ended. If the companion
/// cannot be created, `life` runs in the calling thread. A companion must not call this, because the second companion would
/// end with the first.
///
/// # Errors
/// The companion was killed: `life` did not run to its end, and its values were not dropped.
pub fn run_companion(stack_bytes: usize, life: impl FnOnce()) -> io::Result<()> {
    let stack = GuardedStack::new(stack_bytes).and_then(|stack| install_handler().map(|()| stack));
    let Ok(stack) = stack else {
        life();
        return Ok(());
    };
    let _ = owner_spawner();
    let mask = SignalMask::block_all();
    let job = CompanionStart { life: UnsafeCell::new(Some(life)), owner: std::process::id().cast_signed(), mask };
    let argument = ptr::from_ref(&job).cast_mut().cast::<c_void>();
    let entry = entry_for(&job);
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND;
    // SAFETY: the stack is mapped and has no other user. Until the companion has ended, this thread only makes bare system
    // calls, and no signal interrupts them. So only the companion uses the thread-local storage, and `job` outlives the
    // companion.
    let ended = match unsafe { libc::clone(entry, stack.top(), flags, argument) } {
        pid if pid < 0 => None,
        pid => Some(reap_clone(pid)),
    };
    OWNER.with(|owner| owner.store(0, Ordering::Relaxed));
    job.mask.restore();
    match ended {
        None => job.life.into_inner().into_iter().for_each(|life| life()),
        Some(status) if libc::WIFEXITED(status) => {}
        Some(status) => {
            return Err(io::Error::other(format!("the companion was killed by signal {}", libc::WTERMSIG(status))));
        }
    }
    Ok(())
}

struct CompanionStart<F> {
    life: UnsafeCell<Option<F>>,
    owner: i32,
    /// The signal mask of the thread that starts the companion.
    mask: SignalMask,
}

type Entry = extern "C" fn(*mut c_void) -> i32;

fn entry_for<F: FnOnce()>(_: &CompanionStart<F>) -> Entry {
    companion_entry::<F>
}

extern "C" fn companion_entry<F: FnOnce()>(argument: *mut c_void) -> i32 {
    // SAFETY: `run_companion` passes a job of this type, which lives until this process has ended.
    let job = unsafe { &*argument.cast::<CompanionStart<F>>() };
    OWNER.with(|owner| owner.store(job.owner, Ordering::Relaxed));
    // SAFETY: a call with plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, owner_ended_signal()) };
    job.mask.restore();
    // SAFETY: getppid has no requirements.
    if unsafe { libc::getppid() } != job.owner {
        exit_companion();
    }
    // SAFETY: the thread that made the job waits for this process, and does not access the job until it has ended.
    let life = unsafe { (*job.life.get()).take() };
    // A panic has already written its message. Nothing may unwind beyond this frame.
    let _ = catch_unwind(AssertUnwindSafe(|| life.into_iter().for_each(|life| life())));
    exit_companion()
}

/// Ends only this process. Unlike exit(3), this runs no exit handlers, which would use the shared memory.
fn exit_companion() -> ! {
    // SAFETY: the kernel ends the process.
    unsafe { libc::_exit(0) }
}

/// Waits for a child without an exit signal, and returns its status.
fn reap_clone(pid: i32) -> i32 {
    let mut status = 0_i32;
    let at = ptr::from_mut(&mut status);
    // SAFETY: the kernel writes to `status`. waitpid(3) is not used: it is a cancellation point, which uses thread-local
    // storage. The raw call uses thread-local storage only for errno, when it fails.
    while unsafe { libc::syscall(libc::SYS_wait4, pid, at, libc::__WALL, ptr::null_mut::<libc::rusage>()) } < 0 {}
    status
}

/// The signals that a thread blocked.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Blocks all signals for the calling thread. Returns the previous mask.
    fn block_all() -> Self {
        // SAFETY: both sets live on this frame; sigfillset initialises one, pthread_sigmask the other.
        unsafe {
            let (mut every, mut before) = (zeroed(), zeroed());
            libc::sigfillset(&mut every);
            libc::pthread_sigmask(libc::SIG_SETMASK, &every, &mut before);
            Self(before)
        }
    }

    fn restore(&self) {
        // SAFETY: a valid set is read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// A thread to start, and the channel for the result.
type SpawnRequest = (thread::Builder, Box<dyn FnOnce() + Send>, SyncSender<io::Result<()>>);

/// Starts a thread of the owner. A thread that a companion starts directly ends with the companion.
///
/// # Errors
/// As pthread_create(3). Also if the owner has no thread that starts threads for companions.
pub fn spawn_in_owner(builder: thread::Builder, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if OWNER.with(|owner| owner.load(Ordering::Relaxed)) == 0 {
        return builder.spawn(body).map(drop);
    }
    let (result_sender, result_receiver) = mpsc::sync_channel(1);
    let lost = || io::Error::other("the owner has no thread that starts threads for companions");
    owner_spawner().ok_or_else(lost)?.send((builder, Box::new(body), result_sender)).map_err(|_| lost())?;
    result_receiver.recv().map_err(|_| lost())?
}

/// Returns the channel to the owner's thread that starts other threads. The first call starts that thread, in the owner.
fn owner_spawner() -> Option<&'static Sender<SpawnRequest>> {
    static OWNER_SPAWNER: OnceLock<Option<Sender<SpawnRequest>>> = OnceLock::new();
    let begin = || {
        let (sender, orders) = mpsc::channel::<SpawnRequest>();
        let serve = move || {
            for (builder, body, result_sender) in orders {
                // The send fails if the requester has ended.
                let _ = result_sender.send(builder.spawn(body).map(drop));
            }
        };
        thread::Builder::new().name("thread-starter".to_owned()).spawn(serve).is_ok().then_some(sender)
    };
    OWNER_SPAWNER.get_or_init(begin).as_ref()
}

/// Runs only in a companion: no other process is sent this signal.
extern "C" fn handle_owner_ended(_: i32) {
    if !IS_CRITICAL.with(|is_critical| is_critical.load(Ordering::SeqCst)) {
        exit_companion();
    }
    IS_ORPHAN.with(|is_orphan| is_orphan.store(true, Ordering::SeqCst));
    let limit = libc::timeval { tv_sec: 0, tv_usec: ORPHAN_LIMIT_US };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: limit };
    // SAFETY: setitimer only makes a system call; its signal, SIGALRM, ends the process. The interrupted thread finds its
    // errno unchanged.
    unsafe {
        let error = *libc::__errno_location();
        libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut());
        *libc::__errno_location() = error;
    }
}

fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all zeroes is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = handle_owner_ended as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler makes system calls and touches atomics of its thread only.
        unsafe { libc::sigaction(owner_ended_signal(), &action, ptr::null_mut()) == 0 }
    });
    if *installed { Ok(()) } else { Err(io::Error::other("the signal handler could not be installed")) }
}

/// Memory for a stack, above a guard page.
struct GuardedStack {
    start: *mut c_void,
    bytes: usize,
}

impl GuardedStack {
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | MapFlags::NORESERVE) }?;
        let stack = Self { start, bytes };
        // SAFETY: the first page of our own mapping.
        unsafe { mprotect(start, PAGE_BYTES, MprotectFlags::empty()) }?;
        Ok(stack)
    }

    /// The address after the last byte: stacks grow downwards.
    fn top(&self) -> *mut c_void {
        self.start.wrapping_byte_add(self.bytes)
    }
}

impl Drop for GuardedStack {
    fn drop(&mut self) {
        // SAFETY: our own mapping. The companion that used it has ended.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::time::Duration;

    const STACK_BYTES: usize = 256 << 10;

    #[test]
    fn a_companion_shares_memory_and_is_another_process() {
        let (own, mut seen) = (std::process::id(), Vec::new());
        run_companion(STACK_BYTES, || {
            seen.push(std::process::id());
            assert_eq!(owner_pid(), own.cast_signed());
        })
        .unwrap();
        assert!(seen.len() == 1 && seen[0] != own);
        assert_eq!(owner_pid(), own.cast_signed());
    }

    #[test]
    fn channels_and_threads_work_in_a_companion() {
        let (request_sender, requests) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let starter = thread::spawn(move || {
            run_companion(STACK_BYTES, move || {
                for number in requests {
                    let twice = thread::spawn(move || 2 * number).join().unwrap();
                    answer.send(twice).unwrap();
                }
            })
        });
        for number in 0..100 {
            request_sender.send(number).unwrap();
            assert_eq!(answered.recv().unwrap(), 2 * number);
        }
        drop(request_sender);
        starter.join().unwrap().unwrap();
    }

    #[test]
    fn a_thread_of_the_owner_outlives_the_companion() {
        let (request_sender, requests) = mpsc::channel::<()>();
        let (answer, answered) = mpsc::channel();
        run_companion(STACK_BYTES, move || {
            let body = move || {
                let _ = requests.recv();
                answer.send(std::process::id()).unwrap();
            };
            spawn_in_owner(thread::Builder::new(), body).unwrap();
        })
        .unwrap();
        drop(request_sender);
        assert_eq!(answered.recv().unwrap(), std::process::id());
    }

    #[test]
    fn a_panic_ends_the_companion_alone() {
        run_companion(STACK_BYTES, || panic!("this is expected")).unwrap();
        let killed = run_companion(STACK_BYTES, || {
            // SAFETY: a signal to this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert!(killed.unwrap_err().to_string().contains("signal 9"));
    }

    /// Forks an owner that starts a companion, and kills the owner when the companion runs. Returns what the companion
    /// wrote.
    fn written_by_orphan(life: fn(&mut io::PipeWriter)) -> String {
        let (mut started, start) = io::pipe().unwrap();
        let (mut output, input) = io::pipe().unwrap();
        // Another test may just be initializing these. Then the child would wait for a thread that it does not have.
        install_handler().unwrap();
        let _ = owner_spawner();
        // SAFETY: the child uses no lock that another thread could hold: it starts a companion and ends.
        let owner = unsafe { libc::fork() };
        if owner == 0 {
            drop((started, output));
            let (mut start, mut input) = (start, input);
            let _ = run_companion(STACK_BYTES, move || {
                let section = CriticalSection::enter();
                start.write_all(b"b").unwrap();
                life(&mut input);
                drop(section);
                input.write_all(b" and on").unwrap();
            });
            exit_companion();
        }
        drop((start, input));
        started.read_exact(&mut [0]).unwrap();
        // SAFETY: our own child.
        unsafe { libc::kill(owner, libc::SIGKILL) };
        let mut status = MaybeUninit::uninit();
        // SAFETY: the kernel writes the status.
        unsafe { libc::waitpid(owner, status.as_mut_ptr(), 0) };
        let mut written = String::new();
        output.read_to_string(&mut written).unwrap();
        written
    }

    #[test]
    fn only_the_critical_section_outlives_the_owner() {
        let life = |input: &mut io::PipeWriter| {
            thread::sleep(Duration::from_millis(100));
            input.write_all(if is_orphan() { b"orphan" } else { b"owned" }).unwrap();
        };
        // On a busy machine the limit may end the section, or the owner may be killed too late. Such an attempt proves
        // nothing.
        const ATTEMPTS: usize = 20;
        let outcomes = (0..ATTEMPTS).map(|_| written_by_orphan(life));
        let others: Vec<String> = outcomes.take_while(|written| written != "orphan").collect();
        assert!(others.len() < ATTEMPTS && others.iter().all(|other| !other.contains("orphan")), "{others:?}");
    }

    #[test]
    fn a_critical_section_that_does_not_end_is_ended() {
        let began = std::time::Instant::now();
        assert_eq!(written_by_orphan(|_| thread::sleep(Duration::from_secs(60))), "");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
