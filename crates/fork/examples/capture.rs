//! `capture [--freeze] PID OUT`: captures a process, prints how long it took, writes the encoded descriptor to OUT and
//! holds the template until standard input ends. `capture --check PID` tells what would be carried.

use std::error::Error;
use std::io::Read;
use std::{env, fs, io};

use farfork_fork::capture::{self, CaptureOptions, CheckOptions};
use farfork_wire::NodeName;
use farfork_wire::descriptor::encode;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--check", pid] => println!("{:#?}", capture::check(pid.parse()?, CheckOptions::default())?),
        ["--freeze", pid, out] => hold(pid.parse()?, out, true)?,
        [pid, out] => hold(pid.parse()?, out, false)?,
        _ => return Err("usage: capture [--freeze] PID OUT | capture --check PID".into()),
    }
    Ok(())
}

fn hold(pid: i32, out: &str, freeze: bool) -> Result<(), Box<dyn Error>> {
    let options = CaptureOptions { freeze, ..CaptureOptions::new(NodeName::new("example")?) };
    let captured = capture::capture_blocking(pid, options)?;
    fs::write(out, encode(&captured.descriptor)?)?;
    println!("template {} {:#?}", captured.template.pid(), captured.times);
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
