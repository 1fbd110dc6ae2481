//! `Signal`: names of signals (signal(7), x86-64), with or without the prefix `SIG`. `forward_signals`: those that a command
//! forwards.

use std::io;
use std::str::FromStr;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The names of signals 1 to 31.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The signals that a command forwards to its program or children: those that users and supervisors send. The terminating ones are
/// first.
pub(crate) const FORWARDED_SIGNALS: [u32; 7] = [
    1,  // SIGHUP
    2,  // SIGINT
    3,  // SIGQUIT
    15, // SIGTERM
    10, // SIGUSR1
    12, // SIGUSR2
    18, // SIGCONT
];

/// Starts tasks that send a message for each of [`FORWARDED_SIGNALS`], made from its number, until the receiver is dropped.
///
/// # Errors
/// As signal(2).
pub(crate) fn forward_signals<T: Send + 'static>(
    messages: &mpsc::Sender<T>,
    to_message: fn(u32) -> T,
) -> io::Result<()> {
    for number in FORWARDED_SIGNALS {
        let (mut signals, messages) = (signal(SignalKind::from_raw(number.cast_signed()))?, messages.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() && messages.send(to_message(number)).await.is_ok() {}
        });
    }
    Ok(())
}

/// Largest signal number, real-time ones included.
const SIGNAL_MAX: u32 = 64;

/// A signal as specified by a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal(pub(crate) u32);

impl FromStr for Signal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
        let by_name = NAMES.iter().position(|name| *name == bare).map(|index| index as u32 + 1);
        let by_number = || bare.parse().ok().filter(|number| (1..=SIGNAL_MAX).contains(number));
        by_name
            .or_else(by_number)
            .map(Signal)
            .ok_or_else(|| format!("no signal is called `{text}`; try TERM, KILL, USR1 or a number"))
    }
}

/// Returns `SIGTERM` for 15, and `signal N` for a signal without a name.
pub(crate) fn name(signal: u32) -> String {
    let known = signal.checked_sub(1).and_then(|index| NAMES.get(index as usize));
    known.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::{Signal, name};

    #[test]
    fn signals_are_parsed_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(text.parse(), Ok(Signal(15)), "{text}");
        }
        assert!("0".parse::<Signal>().is_err());
        assert!("65".parse::<Signal>().is_err());
        assert_eq!((name(9).as_str(), name(40).as_str()), ("SIGKILL", "signal 40"));
    }
}
