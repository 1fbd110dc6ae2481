//! Tests of `EtcdCatalog` over TLS, with certificates that the tests make.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use time::OffsetDateTime;

use super::*;
use crate::catalog::conformance::{new_record, volume_name};
use crate::local::{EtcdTls, TestEtcd};

const DAY: time::Duration = time::Duration::days(1);

/// An authority, and the directory of the certificates that it signs.
struct TestAuthority {
    directory: TempDir,
    certificate: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let (directory, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let certificate = directory.path().join("authority.pem");
        fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, certificate, issuer: Issuer::new(params, key) }
    }

    /// Signs a certificate for the loopback. Returns the files of certificate and key.
    fn sign(&self, name: &str, expires: OffsetDateTime) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = expires - 2 * DAY;
        params.not_after = expires;
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let path = |extension: &str| self.directory.path().join(format!("{name}.{extension}"));
        fs::write(path("pem"), signed.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("pem"), path("key"))
    }

    /// Starts a member with a certificate that expires at this time.
    fn start_member(&self, directory: &Path, expires: OffsetDateTime) -> TestEtcd {
        let (certificate, key) = self.sign("member", expires);
        let tls = EtcdTls { certificate, key, client_authority: self.certificate.clone() };
        TestEtcd::start(directory, 1, Some(tls)).expect("`make setup` installs etcd-server")
    }

    /// Makes a directory of credentials. Without `expires`, it has no certificate of the client.
    fn credentials(&self, authority: &Path, expires: Option<OffsetDateTime>) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::copy(authority, directory.path().join("ca.pem")).unwrap();
        if let Some(expires) = expires {
            let (certificate, key) = self.sign("client", expires);
            fs::rename(certificate, directory.path().join("client.pem")).unwrap();
            fs::rename(key, directory.path().join("client.key")).unwrap();
        }
        directory
    }
}

fn location(etcd: &TestEtcd, credentials: &TempDir) -> EtcdLocation {
    EtcdLocation { credentials: Some(credentials.path().to_owned()), ..etcd.location("/farfork") }
}

/// Why a catalog cannot be read. An attempt that was late, or too early for the member, is repeated.
fn refusal(location: &EtcdLocation) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let error = EtcdCatalog::open_with_limit(location, Duration::ZERO).unwrap().read().unwrap_err().to_string();
        if !error.contains("no answer within") && !error.contains("tcp connect error") {
            return error;
        }
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[test]
fn tls_needs_valid_certificates_of_both_sides() {
    let (authority, other, data) = (TestAuthority::new(), TestAuthority::new(), tempfile::tempdir().unwrap());
    let now = OffsetDateTime::now_utc();
    let etcd = authority.start_member(data.path(), now + DAY);

    let valid = authority.credentials(&authority.certificate, Some(now + DAY));
    let catalog = EtcdCatalog::open_with_limit(&location(&etcd, &valid), Duration::from_secs(60)).unwrap();
    catalog.write_volume(&volume_name("data"), &new_record()).unwrap();
    assert!(catalog.read().unwrap().volumes.contains_key(&volume_name("data")));

    let expired = authority.credentials(&authority.certificate, Some(now - DAY));
    let error = refusal(&location(&etcd, &expired));
    let named = expired.path().join("client.pem").display().to_string();
    assert!(error.contains(&named) && error.contains("has expired"), "{error}");

    let error = refusal(&location(&etcd, &authority.credentials(&authority.certificate, None)));
    assert!(error.contains("no member has answered"), "without a certificate: {error}");
    let foreign = authority.credentials(&other.certificate, Some(now + DAY));
    let error = refusal(&location(&etcd, &foreign));
    assert!(error.contains("invalid peer certificate"), "{error}");
    fs::write(foreign.path().join("client.pem"), "nothing").unwrap();
    let error = EtcdCatalog::open(&location(&etcd, &foreign)).unwrap_err().to_string();
    assert!(error.contains("client.pem: not a certificate"), "{error}");
}

#[test]
fn a_member_with_an_expired_certificate_is_refused() {
    let (authority, data, now) = (TestAuthority::new(), tempfile::tempdir().unwrap(), OffsetDateTime::now_utc());
    let etcd = authority.start_member(data.path(), now - DAY);
    let error = refusal(&location(&etcd, &authority.credentials(&authority.certificate, Some(now + DAY))));
    assert!(error.contains("xpired") && error.contains("renew the certificate of https://127.0.0.1"), "{error}");
}

/// Each failure has its cause and its next step.
#[test]
fn failures_of_tls_have_their_own_next_steps() {
    let (authority, other, data) = (TestAuthority::new(), TestAuthority::new(), tempfile::tempdir().unwrap());
    let tomorrow = OffsetDateTime::now_utc() + DAY;
    let etcd = authority.start_member(data.path(), tomorrow);
    let valid = authority.credentials(&authority.certificate, Some(tomorrow));
    let tls = location(&etcd, &valid);
    EtcdCatalog::open_with_limit(&tls, Duration::from_secs(60)).unwrap().read().unwrap();
    let require = |location: &EtcdLocation, parts: &[&str]| {
        let error = refusal(location);
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    };

    require(&EtcdLocation { uses_tls: false, credentials: None, ..tls.clone() }, &["uses TLS", "etcds://"]);
    let members = vec![tls.members[0].replace("127.0.0.1", "localhost")];
    require(&EtcdLocation { members, ..tls }, &["as its certificate does"]);
    let without = authority.credentials(&authority.certificate, None);
    let directory = without.path().to_str().unwrap();
    require(&location(&etcd, &without), &["`client.pem` and `client.key`", directory]);
    require(
        &location(&etcd, &authority.credentials(&other.certificate, Some(tomorrow))),
        &["invalid peer certificate", "`ca.pem` of"],
    );
    let foreign = other.credentials(&authority.certificate, Some(tomorrow));
    require(&location(&etcd, &foreign), &["--trusted-ca-file", "`client.pem` of"]);

    let plain_data = tempfile::tempdir().unwrap();
    let plain = TestEtcd::start(plain_data.path(), 1, None).unwrap();
    EtcdCatalog::open_with_limit(&plain.location("/farfork"), Duration::from_secs(60)).unwrap().read().unwrap();
    require(&EtcdLocation { uses_tls: true, ..location(&plain, &valid) }, &["does not use TLS", "etcd://"]);
}
