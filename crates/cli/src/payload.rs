//! Payloads: the bytes that tell one child from another, from files or standard input.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use farfork_node::failure::Failure;
use farfork_node::limits::PAYLOAD_BYTES_MAX;
use tonic::Code;

/// Stands for standard input.
const STDIN: &str = "-";

/// Reads one payload.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let content = read_all(path)?;
    check_size(path, 0, &content)?;
    Ok(content)
}

/// Reads one payload from each line; an empty line is an empty payload.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let content = read_all(path)?;
    let lines = content.strip_suffix(b"\n").unwrap_or(&content);
    if content.is_empty() {
        return Err(refuse(path, "it is empty, and each line is one child's payload"));
    }
    let payloads: Vec<Vec<u8>> = lines.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for (index, payload) in payloads.iter().enumerate() {
        check_size(path, index, payload)?;
    }
    Ok(payloads)
}

fn read_all(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let result = if path.as_os_str() == STDIN {
        io::stdin().lock().read_to_end(&mut content).map(drop)
    } else {
        fs::read(path).map(|bytes| content = bytes)
    };
    result.map_err(|error| refuse(path, &error.to_string()))?;
    Ok(content)
}

fn check_size(path: &Path, index: usize, payload: &[u8]) -> Result<(), Failure> {
    if payload.len() <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    let cause = format!("payload {index} has {} bytes, more than {PAYLOAD_BYTES_MAX}", payload.len());
    Err(refuse(path, &cause).with_next_step("leave the data in a file, and pass its path"))
}

fn refuse(path: &Path, cause: &str) -> Failure {
    Failure::new(Code::InvalidArgument, format!("payload file {}", path.display()), cause)
}

#[cfg(test)]
mod tests {
    use super::read_lines;
    use std::fs;

    #[test]
    fn each_line_is_a_payload() {
        let path = std::env::temp_dir().join(format!("farfork-payloads-{}", std::process::id()));
        fs::write(&path, b"{\"a\":1}\n\n{\"a\":3}\n").unwrap();
        let payloads = read_lines(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(payloads, [b"{\"a\":1}".to_vec(), Vec::new(), b"{\"a\":3}".to_vec()]);
    }
}
