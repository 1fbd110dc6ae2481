//! `farfork cluster show`: prints the contents of a trust directory.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use farfork_trust::{Credentials, Encryption, Fingerprint};

use crate::output::{self, Table};
use crate::{GlobalArgs, duration};

/// Show this machine's identity, the trusted authorities and the revoked members.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster show
  farfork cluster show --json

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Show {}

impl Show {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let directory = global.trust();
        let credentials = Credentials::open(&directory, Encryption::On)?;
        let (roster, _) = credentials.roster();
        let authorities: Vec<String> =
            roster.authorities().iter().map(|der| Fingerprint::of_certificate(der).to_string()).collect();
        let holds = directory.holds_authority();
        let tokens = if holds { directory.read_tokens()?.valid_count(SystemTime::now()) } else { 0 };
        let revoked: Vec<&str> = roster.revocations().iter().map(|entry| entry.subject.as_str()).collect();
        let issued_unix_ms = credentials.issued_at().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        if global.json {
            output::print_json(&serde_json::json!({
                "identity": credentials.identity().to_string(),
                "trust": directory.root(),
                "issued_unix_ms": u64::try_from(issued_unix_ms).unwrap_or(u64::MAX),
                "is_of_current_authority": credentials.is_issued_by_current_authority(),
                "roster": roster.counter(),
                "authorities": authorities,
                "holds_authority": holds,
                "join_tokens": tokens,
                "revoked": revoked,
            }));
            return Ok(ExitCode::SUCCESS);
        }
        let age = SystemTime::now().duration_since(credentials.issued_at()).unwrap_or(Duration::ZERO);
        let mut table = Table::new(&["WHAT", "VALUE"]);
        table.add_row(["identity".to_owned(), credentials.identity().to_string()]);
        table.add_row(["certificate".to_owned(), format!("made {} ago", duration::format_whole_seconds(age))]);
        table.add_row(["roster".to_owned(), roster.counter().to_string()]);
        for (index, authority) in authorities.iter().enumerate() {
            let what = if index == 0 { "authority, issues" } else { "authority, before" };
            table.add_row([what.to_owned(), authority.clone()]);
        }
        table.add_row(["authority held here".to_owned(), if holds { "yes" } else { "no" }.to_owned()]);
        if holds {
            table.add_row(["valid join tokens".to_owned(), tokens.to_string()]);
        }
        for bearer in revoked {
            table.add_row(["revoked".to_owned(), bearer.to_owned()]);
        }
        table.print();
        Ok(ExitCode::SUCCESS)
    }
}
