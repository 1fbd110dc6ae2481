//! Formats numbers with units for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `1234` → `1.23 ms`.
pub(crate) fn format_microseconds(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} µs"),
        1_000..1_000_000 => format!("{:.2} ms", count as f64 / 1e3),
        _ => format!("{:.2} s", count as f64 / 1e6),
    }
}

/// `1` → `1 thread`, `2` → `2 threads`.
pub(crate) fn format_threads(count: u32) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// `1`, `2` → `2 threads`; `3`, `4` → `3 processes with 4 threads`.
pub(crate) fn format_processes(processes: u32, threads: u32) -> String {
    let threads = format_threads(threads);
    if processes > 1 { format!("{processes} processes with {threads}") } else { threads }
}

/// Formats an age in its largest unit: `3m`.
pub(crate) fn format_age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats the current time of day in UTC: `13:05:09`.
pub(crate) fn format_time_of_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{:02}:{:02}:{:02}", now / 3600 % 24, now / 60 % 60, now % 60)
}

/// Maximum length of a command line in a table or sentence, in characters. `--json` has all of it.
const COMMAND_CHARACTERS_MAX: usize = 40;

/// Programs that run a script. A version at the end of the name, as in `python3.11`, does not matter.
const INTERPRETERS: [&str; 18] = [
    "bash", "bun", "dash", "deno", "java", "julia", "ksh", "lua", "node", "nodejs", "perl", "php", "pypy", "python",
    "Rscript", "ruby", "sh", "zsh",
];

/// Shortens a command line: the program and its script without their directories, then as many other arguments as fit.
///
/// The process itself chooses the text of its command line. Control characters, which could move the cursor, are
/// replaced by dots.
pub(crate) fn shorten_command(text: &str) -> String {
    let text = remove_directories(text);
    let mut shown: String =
        text.chars().take(COMMAND_CHARACTERS_MAX).map(|c| if c.is_control() { '·' } else { c }).collect();
    if text.chars().count() > COMMAND_CHARACTERS_MAX {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// `/usr/bin/python3 -u /opt/job/warm.py /data/in` → `python3 -u warm.py /data/in`.
fn remove_directories(command: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    words[0] = base_name(words[0]);
    if is_interpreter(words[0])
        && let Some(script) = find_script(&words)
    {
        words[script] = base_name(words[script]);
    }
    words.join(" ")
}

/// Returns the text after the last slash, or the whole text if it ends with a slash.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
}

fn is_interpreter(program: &str) -> bool {
    INTERPRETERS.contains(&program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Returns the index of an interpreter's first argument that is not an option. Returns `None` if an option such as `-c`
/// or `-e` has the script itself.
fn find_script(words: &[&str]) -> Option<usize> {
    let index = (1..words.len()).find(|index| !words[*index].starts_with('-'))?;
    let is_code = |option: &&str| !option.starts_with("--") && option.ends_with(['c', 'e']);
    if words[1..index].iter().any(is_code) { None } else { Some(index) }
}

#[cfg(test)]
mod tests {
    use super::{format_microseconds, format_processes, format_threads, shorten_command};

    #[test]
    fn a_command_fits_and_cannot_move_the_cursor() {
        assert_eq!(shorten_command("node server.js"), "node server.js");
        let long = shorten_command(&"x".repeat(200));
        assert_eq!((long.chars().count(), long.chars().last()), (40, Some('…')));
        assert_eq!(shorten_command("a\n\u{1b}[2J"), "a··[2J");
    }

    #[test]
    fn a_command_shows_the_names_of_program_and_script() {
        for (command, shown) in [
            ("/opt/venv/bin/python3.11 /srv/jobs/warm.py", "python3.11 warm.py"),
            ("python3 warm.py", "python3 warm.py"),
            ("/usr/bin/python3 -u ./warm.py /data/in", "python3 -u warm.py /data/in"),
            ("/usr/bin/python3 -m http.server", "python3 -m http.server"),
            ("/usr/bin/python3", "python3"),
            ("/usr/bin/python3 -", "python3 -"),
            ("/bin/sh -ec cat /etc/passwd", "sh -ec cat /etc/passwd"),
            ("/usr/bin/node --inspect=0.0.0.0 /srv/a.js", "node --inspect=0.0.0.0 a.js"),
            ("/usr/sbin/nginx -c /etc/nginx.conf", "nginx -c /etc/nginx.conf"),
            ("/bin/cat /etc/passwd", "cat /etc/passwd"),
            ("/srv/bin/ /x", "/srv/bin/ /x"),
            ("", ""),
        ] {
            assert_eq!(shorten_command(command), shown);
        }
    }

    #[test]
    fn one_thread_is_singular() {
        assert_eq!([0, 1, 2].map(format_threads), ["0 threads", "1 thread", "2 threads"]);
        assert_eq!([1, 3].map(|processes| format_processes(processes, 4)), ["4 threads", "3 processes with 4 threads"]);
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(format_microseconds(999), "999 µs");
        assert_eq!(format_microseconds(1_234), "1.23 ms");
        assert_eq!(format_microseconds(2_500_000), "2.50 s");
    }
}
