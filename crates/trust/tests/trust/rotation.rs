//! Joining, renewing and rotating, while all members keep running.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant, SystemTime};

use farfork_trust::member::{IssuedCertificate, MemberError};
use farfork_trust::{
    Authority, Credentials, DirectoryError, Encryption, Fingerprint, NODE_VALID, Role, RosterError, TOKEN_VALID_MAX,
    TokenRefusal, TrustDirectory, UncertifiedKey, member,
};

use crate::bed::{Bed, name, open, pair, shake};

const HOUR: Duration = Duration::from_secs(3600);

/// Credentials are loaded again when they are this old.
const CREDENTIALS_AGE_MAX: Duration = Duration::from_secs(1);

fn know_each_other(one: &Credentials, other: &Credentials) -> bool {
    let (mut client, mut server) = pair(one, other, None);
    let (client, server) = shake(&mut client, &mut server);
    client.is_ok() && server.is_ok()
}

/// Renews a certificate as a node does, on the machine with the authority.
fn renew(bed: &Bed, directory: &TrustDirectory, member: &str) {
    let key = UncertifiedKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let now = SystemTime::now();
    let certificate =
        member::issue_certificate(&bed.first, &request, Role::Node, &name(member), now, NODE_VALID).unwrap();
    member::install_renewal(directory, &key, &certificate).unwrap();
}

#[test]
fn a_machine_joins_with_a_token() {
    let (bed, now) = (Bed::new("blue"), SystemTime::now());
    let token = member::create_join_token(&bed.first, now, HOUR).unwrap();
    let key = UncertifiedKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let proof = token.create_proof(&name("n2"), &request);
    let admit = |is_free, at| member::admit_node(&bed.first, &proof, &request, &name("n2"), || is_free, || at);
    let expired = admit(false, now + HOUR);
    assert!(matches!(expired, Err(MemberError::Token(TokenRefusal::Expired))), "the token is checked before the name");
    assert!(matches!(admit(false, now), Err(MemberError::NameTaken)));
    let IssuedCertificate { certificate, roster } = admit(true, now).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let into = TrustDirectory::new(scratch.path().join("trust"));
    let wrong =
        member::install_join(&into, &key, &name("n2"), &certificate, &roster, Fingerprint::of_certificate(b"another"));
    assert!(matches!(wrong, Err(MemberError::Roster(RosterError::Unsigned))));
    member::install_join(&into, &key, &name("n2"), &certificate, &roster, token.authority).unwrap();
    assert!(know_each_other(&open(&into, Encryption::On), &open(&bed.first, Encryption::On)));
    let again = member::install_join(&into, &key, &name("n2"), &certificate, &roster, token.authority);
    assert!(matches!(again, Err(MemberError::Directory(DirectoryError::AlreadyExists { .. }))));
}

#[test]
fn a_certificate_is_issued_only_for_the_key_of_its_request() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let key = UncertifiedKey::generate().unwrap();
    let mut request = key.certificate_request().unwrap();
    let issue = |request: &[u8]| {
        member::issue_certificate(&bed.first, request, Role::Node, &name("n2"), SystemTime::now(), NODE_VALID)
    };
    issue(&request).unwrap();
    let mut refused = 0;
    for at in 0..request.len() {
        request[at] ^= 1;
        match issue(&request) {
            // No signature covers the flipped bit. The key must be the same, or the installation fails.
            Ok(certificate) => {
                member::install_renewal(&second, &key, &certificate).unwrap();
                open(&second, Encryption::On);
            }
            Err(_) => refused += 1,
        }
        request[at] ^= 1;
    }
    assert!(refused > request.len() * 9 / 10, "{refused} of {}", request.len());
    assert!(issue(&[]).is_err());
}

#[test]
fn only_a_certificate_of_this_member_is_installed() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let before = second.read_identity().unwrap();
    let key = UncertifiedKey::generate().unwrap();
    let issue = |bed: &Bed, role, who: &str, key: &UncertifiedKey| {
        let request = key.certificate_request().unwrap();
        member::issue_certificate(&bed.first, &request, role, &name(who), SystemTime::now(), NODE_VALID).unwrap()
    };
    let mut forged = issue(&bed, Role::Node, "n2", &key);
    *forged.last_mut().unwrap() ^= 1;
    for (answer, words) in [
        (b"nothing".to_vec(), "cannot be read"),
        (issue(&bed, Role::Node, "n3", &key), "node/n3"),
        (issue(&bed, Role::Client, "n2", &key), "client/n2"),
        (issue(&bed, Role::Node, "n2", &UncertifiedKey::generate().unwrap()), "another key"),
        (issue(&Bed::new("blue"), Role::Node, "n2", &key), "not signed by an authority"),
        (forged, "not signed by an authority"),
    ] {
        let error = member::install_renewal(&second, &key, &answer).unwrap_err();
        assert!(
            matches!(&error, MemberError::InvalidCertificate(_)) && error.to_string().contains(words),
            "{words}: {error}"
        );
        assert_eq!(second.read_identity().unwrap(), before);
        // A machine cannot join with it either.
        let (into, (roster, bytes)) = (tempfile::tempdir().unwrap(), bed.first.read_roster().unwrap());
        let (into, pin) = (TrustDirectory::new(into.path()), Fingerprint::of_certificate(&roster.authorities()[0]));
        assert!(member::install_join(&into, &key, &name("n2"), &answer, &bytes, pin).is_err());
        assert!(!into.has_identity());
    }
    let good = issue(&bed, Role::Node, "n2", &key);
    member::install_renewal(&second, &key, &good).unwrap();
    assert!(know_each_other(&open(&second, Encryption::On), &open(&bed.first, Encryption::On)));
}

#[test]
fn connections_continue_after_a_key_renewal() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (one, other) = (open(&second, Encryption::On), open(&bed.first, Encryption::On));
    let (mut client, mut server) = pair(&one, &other, None);
    shake(&mut client, &mut server).1.unwrap();
    let before = one.issued_at();
    renew(&bed, &second, "n2");
    one.reload();
    assert!(one.issued_at() > before);
    assert!(crate::bed::carry(&mut client, &mut server, b"still here") == b"still here");
    assert!(know_each_other(&one, &other));
}

#[test]
fn nodes_trust_each_other_throughout_a_rotation() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (one, other) = (open(&bed.first, Encryption::On), open(&second, Encryption::On));
    member::begin_rotation(&bed.first, SystemTime::now()).unwrap();
    assert!(matches!(member::begin_rotation(&bed.first, SystemTime::now()), Err(MemberError::RotationInProgress)));
    one.reload();
    assert!(know_each_other(&one, &other) && know_each_other(&other, &one), "before the new roster arrives");

    assert!(other.install_roster(&one.roster().1).unwrap());
    assert!(!other.install_roster(&one.roster().1).unwrap(), "this roster is already in force");
    assert!(!other.is_issued_by_current_authority() && !one.is_issued_by_current_authority());
    renew(&bed, &bed.first, "n1");
    one.reload();
    assert!(know_each_other(&one, &other) && know_each_other(&other, &one), "one node has a new certificate");
    renew(&bed, &second, "n2");
    other.reload();
    assert!(other.is_issued_by_current_authority());

    // Once a rotation has begun, new join tokens pin the new authority.
    let token = member::create_join_token(&bed.first, SystemTime::now(), HOUR).unwrap();
    assert_eq!(token.authority, Fingerprint::of_certificate(&one.roster().0.authorities()[0]));

    let late = bed.issue(Role::Node, "late");
    member::end_rotation(&bed.first).unwrap();
    assert!(matches!(member::end_rotation(&bed.first), Err(MemberError::NoRotation)));
    one.reload();
    assert!(other.install_roster(&one.roster().1).unwrap());
    assert!(know_each_other(&one, &other) && know_each_other(&other, &one), "the old authority is no longer trusted");
    assert!(know_each_other(&open(&late, Encryption::On), &one));
}

#[test]
fn an_interrupted_rotation_continues_and_loses_no_authority() {
    let bed = Bed::new("blue");
    let second = open(&bed.issue(Role::Node, "n2"), Encryption::On);
    let original = second.roster().0.authorities()[0].clone();
    // The new authority was written, the roster was not.
    let new = Authority::create(&name("blue"), SystemTime::now()).unwrap();
    bed.first.write_authority(&new).unwrap();
    let between = open(&bed.issue(Role::Node, "n3"), Encryption::On);
    assert!(know_each_other(&between, &second), "certificates issued during the interruption are accepted");
    assert!(matches!(member::end_rotation(&bed.first), Err(MemberError::NoRotation)));

    member::begin_rotation(&bed.first, SystemTime::now()).unwrap();
    let (roster, bytes) = bed.first.read_roster().unwrap();
    assert_eq!(roster.authorities(), [new.certificate().to_vec(), original]);
    assert!(second.install_roster(&bytes).unwrap(), "the original authority signed it");
    assert!(know_each_other(&open(&bed.issue(Role::Node, "n4"), Encryption::On), &second), "the new authority issues");
}

#[test]
fn an_interrupted_end_of_a_rotation_is_completed() {
    let bed = Bed::new("blue");
    let key_file = bed.first.root().join("authority.old.pem");
    member::begin_rotation(&bed.first, SystemTime::now()).unwrap();
    let key = std::fs::read(&key_file).unwrap();
    member::end_rotation(&bed.first).unwrap();
    // The roster was written, the key was not removed.
    let left = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&key_file);
    left.unwrap().write_all(&key).unwrap();
    let (roster, _) = bed.first.read_roster().unwrap();
    member::end_rotation(&bed.first).unwrap();
    assert!(!key_file.exists(), "the old key is gone");
    assert_eq!(bed.first.read_roster().unwrap().0, roster, "and nothing else has changed");
    assert!(matches!(member::end_rotation(&bed.first), Err(MemberError::NoRotation)));
    member::begin_rotation(&bed.first, SystemTime::now()).unwrap();
}

#[test]
fn certificates_of_the_old_authority_are_refused_after_a_rotation() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let other = open(&second, Encryption::On);
    member::begin_rotation(&bed.first, SystemTime::now()).unwrap();
    renew(&bed, &bed.first, "n1");
    member::end_rotation(&bed.first).unwrap();
    let one = open(&bed.first, Encryption::On);
    let (mut client, mut server) = pair(&other, &one, None);
    let (client, server) = shake(&mut client, &mut server);
    assert!(client.is_err() && server.is_err());
}

#[test]
fn a_damaged_file_leaves_the_credentials_as_they_are() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (one, other) = (open(&second, Encryption::On), open(&bed.first, Encryption::On));
    second.write_identity("not a certificate").unwrap();
    one.reload();
    assert!(know_each_other(&one, &other));
    assert!(Credentials::open(&second, Encryption::On).is_err());
}

#[test]
fn an_older_roster_is_not_installed() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (_, old) = bed.first.read_roster().unwrap();
    member::revoke_identity(&bed.first, Role::Client, &name("mallory"), SystemTime::now).unwrap();
    let (_, new) = bed.first.read_roster().unwrap();
    let credentials = open(&second, Encryption::On);
    assert!(credentials.install_roster(&new).unwrap());
    assert!(!credentials.install_roster(&old).unwrap());
    assert_eq!(credentials.roster_counter(), 2);
}

#[test]
fn tokens_and_certificates_of_unlimited_validity_are_refused() {
    let (bed, now) = (Bed::new("blue"), SystemTime::now());
    for valid in [TOKEN_VALID_MAX + Duration::from_secs(1), Duration::MAX] {
        assert!(matches!(member::create_join_token(&bed.first, now, valid), Err(MemberError::TokenValidity)));
    }
    member::create_join_token(&bed.first, now, TOKEN_VALID_MAX).unwrap();
    let request = UncertifiedKey::generate().unwrap().certificate_request().unwrap();
    for role in [Role::Node, Role::Client, Role::ReadOnly] {
        let issue = |valid| member::issue_certificate(&bed.first, &request, role, &name("x"), now, valid);
        for valid in [role.validity_max() + Duration::from_secs(1), Duration::MAX] {
            let refused = issue(valid).unwrap_err().to_string();
            assert!(refused.contains(role.as_str()) && refused.contains("days"), "{refused}");
        }
        issue(role.validity_max()).unwrap();
    }
}

#[test]
fn a_revocation_invalidates_all_join_tokens() {
    let bed = Bed::new("blue");
    let now = SystemTime::now();
    let token = member::create_join_token(&bed.first, now, HOUR).unwrap();
    member::revoke_identity(&bed.first, Role::Node, &name("n2"), || now).unwrap();
    let request = UncertifiedKey::generate().unwrap().certificate_request().unwrap();
    let proof = token.create_proof(&name("n3"), &request);
    let late = member::admit_node(&bed.first, &proof, &request, &name("n3"), || true, || now);
    assert!(matches!(late, Err(MemberError::Token(TokenRefusal::Unknown))));
}

#[test]
fn a_revoked_node_cannot_renew_its_certificate() {
    let bed = Bed::new("blue");
    let out = open(&bed.issue(Role::Node, "n2"), Encryption::On).own_peer();
    let request = UncertifiedKey::generate().unwrap().certificate_request().unwrap();
    let (opened_at, first) = (Instant::now(), open(&bed.first, Encryption::On));
    member::renew_certificate(&bed.first, &out, &request, SystemTime::now).unwrap();
    member::revoke_identity(&bed.first, Role::Node, &name("n2"), SystemTime::now).unwrap();
    // The loaded credentials may be a second old, which is long enough to request a renewal.
    assert!(!first.is_revoked(&out) || opened_at.elapsed() >= CREDENTIALS_AGE_MAX);
    let renewed = member::renew_certificate(&bed.first, &out, &request, SystemTime::now);
    assert!(matches!(renewed, Err(MemberError::Revoked { .. })), "{renewed:?}");
    let again = open(&bed.issue_at(Role::Node, "n3", SystemTime::now(), NODE_VALID), Encryption::On).own_peer();
    member::renew_certificate(&bed.first, &again, &request, SystemTime::now).unwrap();
}

#[test]
fn a_cluster_is_not_created_twice() {
    let bed = Bed::new("blue");
    let again = member::create_cluster(&bed.first, &name("red"), &name("n1"), SystemTime::now());
    assert!(matches!(again, Err(MemberError::Directory(DirectoryError::AlreadyExists { .. }))));
}
