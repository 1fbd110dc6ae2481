//! Reads payloads from files or standard input. A payload is the bytes that distinguish one child from another. Reading
//! stops at the size limit, so a file that is too large uses no more memory than an allowed one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use farfork_api::failure::Failure;
use farfork_api::limits::{FORK_COUNT_MAX, PAYLOAD_BYTES_MAX, PAYLOADS_BYTES_MAX};
use tonic::Code;

/// The path that selects standard input.
const STDIN: &str = "-";

/// The next step in errors about too much data.
const TOO_LARGE: &str = "leave the data in a file, and pass its path";

/// Reads one payload.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let beyond = open(path)?.take(PAYLOAD_BYTES_MAX as u64 + 1).read_to_end(&mut content);
    beyond.map_err(|error| read_failure(path, &error))?;
    if content.len() > PAYLOAD_BYTES_MAX {
        return Err(
            payload_failure(path, format!("it has more than {PAYLOAD_BYTES_MAX} bytes")).with_next_step(TOO_LARGE)
        );
    }
    Ok(content)
}

/// Reads one payload from each line; an empty line is an empty payload.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let (mut file, mut payloads, mut total_bytes) = (open(path)?, Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        let piece = file.by_ref().take(PAYLOAD_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        if piece.map_err(|error| read_failure(path, &error))? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() > PAYLOAD_BYTES_MAX {
            let cause = format!("payload {} has more than {PAYLOAD_BYTES_MAX} bytes", payloads.len());
            return Err(payload_failure(path, cause).with_next_step(TOO_LARGE));
        }
        total_bytes += line.len();
        if total_bytes > PAYLOADS_BYTES_MAX {
            let cause = format!("its payloads have more than {PAYLOADS_BYTES_MAX} bytes together");
            return Err(payload_failure(path, cause).with_next_step(format!("fork several times; or {TOO_LARGE}")));
        }
        payloads.push(line);
        if payloads.len() > FORK_COUNT_MAX as usize {
            let cause = format!("it has more than {FORK_COUNT_MAX} lines, and each is one child's payload");
            return Err(payload_failure(path, cause).with_next_step("fork several times, with a part of it each"));
        }
    }
    if payloads.is_empty() {
        let step = "write one line for each child; an empty line is an empty payload";
        return Err(payload_failure(path, "it is empty, and each line is one child's payload").with_next_step(step));
    }
    Ok(payloads)
}

/// Returns the name of a payload file for messages.
pub(crate) fn describe(path: &Path) -> String {
    if path.as_os_str() == STDIN { "standard input".to_owned() } else { path.display().to_string() }
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path.as_os_str() == STDIN {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|error| read_failure(path, &error))?;
    Ok(Box::new(BufReader::new(file)))
}

fn read_failure(path: &Path, error: &io::Error) -> Failure {
    let (cause, step) = match error.kind() {
        io::ErrorKind::NotFound => ("it does not exist".to_owned(), "name an existing file, or `-` for standard input"),
        io::ErrorKind::IsADirectory => ("it is a directory".to_owned(), "name a file in it, or `-` for standard input"),
        _ => (format!("it cannot be read: {error}"), "name a file that this user can read, or `-` for standard input"),
    };
    payload_failure(path, cause).with_next_step(step)
}

fn payload_failure(path: &Path, cause: impl std::fmt::Display) -> Failure {
    Failure::new(Code::InvalidArgument, format!("payload file {}", path.display()), cause)
}

#[cfg(test)]
mod tests {
    use super::{FORK_COUNT_MAX, PAYLOAD_BYTES_MAX, PAYLOADS_BYTES_MAX, read, read_lines};
    use std::fs;
    use std::path::PathBuf;

    /// Removed when this is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn of(name: &str, content: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("farfork-payloads-{}-{name}", std::process::id()));
            fs::write(&path, content).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn each_line_is_a_payload() {
        let file = Scratch::of("lines", b"{\"a\":1}\n\n{\"a\":3}\n");
        assert_eq!(read_lines(&file.0).unwrap(), [b"{\"a\":1}".to_vec(), Vec::new(), b"{\"a\":3}".to_vec()]);
        let file = Scratch::of("unended", b"a\nb");
        assert_eq!(read_lines(&file.0).unwrap(), [b"a".to_vec(), b"b".to_vec()]);
        let file = Scratch::of("empty-line", b"\n");
        assert_eq!(read_lines(&file.0).unwrap(), [Vec::<u8>::new()]);
        assert!(read_lines(&Scratch::of("empty", b"").0).unwrap_err().cause().contains("empty"));
    }

    #[test]
    fn a_missing_payload_file_or_a_directory_is_named() {
        let directory = std::env::temp_dir();
        let missing = directory.join(format!("farfork-payloads-{}-missing", std::process::id()));
        for (path, cause) in [(&missing, "it does not exist"), (&directory, "it is a directory")] {
            for refused in [read(path).unwrap_err(), read_lines(path).unwrap_err()] {
                assert_eq!((refused.object(), refused.cause()), (&*format!("payload file {}", path.display()), cause));
                assert!(refused.next_step().contains("or `-` for standard input"), "{refused}");
            }
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_payload() {
        assert_eq!(read(&Scratch::of("nothing", b"").0).unwrap(), b"");
    }

    #[test]
    fn payloads_above_a_limit_are_refused() {
        let long = Scratch::of("long", &vec![b'x'; PAYLOAD_BYTES_MAX]);
        assert_eq!((read(&long.0).unwrap().len(), read_lines(&long.0).unwrap().len()), (PAYLOAD_BYTES_MAX, 1));
        let sparse = Scratch::of("sparse", b"first\n");
        fs::OpenOptions::new().write(true).open(&sparse.0).unwrap().set_len(5 << 30).unwrap();
        assert!(read(&sparse.0).unwrap_err().cause().contains("16777216 bytes"));
        assert!(read_lines(&sparse.0).unwrap_err().cause().contains("payload 1 has more than 16777216 bytes"));
        let mut lines = vec![b'y'; 1 << 20];
        lines.push(b'\n');
        let many = Scratch::of("sum", &lines.repeat((PAYLOADS_BYTES_MAX >> 20) + 1));
        assert!(read_lines(&many.0).unwrap_err().cause().contains("together"));
        let many = Scratch::of("count", &b"\n".repeat(FORK_COUNT_MAX as usize + 1));
        assert!(read_lines(&many.0).unwrap_err().cause().contains("lines"));
    }
}
