//! Certificates for the servers of one cluster, and an authority for them.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::Error;

/// The files, in the folder of the cluster.
#[derive(Debug)]
pub(crate) struct Certificates {
    authority: PathBuf,
    server: PathBuf,
    of_clients: bool,
}

impl Certificates {
    /// Makes an authority of its own, and one certificate for all servers on this machine; for clients too, if they must
    /// have one.
    pub(crate) fn make(folder: &Path, of_clients: bool) -> Result<Self, Error> {
        let (authority, server) = pem().map_err(|error| Error::caused("no certificates can be made", error))?;
        let certificates = Self {
            authority: folder.join("authority.pem"),
            server: folder.join("server.pem"),
            of_clients,
        };
        write(&certificates.authority, &authority)?;
        write(&certificates.server, &server)?;
        Ok(certificates)
    }

    /// Returns a server's arguments. The members of a set show each other the certificate too.
    pub(crate) fn node_args(&self) -> Vec<String> {
        let mut args = vec![
            "--tlsMode=requireTLS".to_owned(),
            format!("--tlsCAFile={}", self.authority.display()),
            format!("--tlsCertificateKeyFile={}", self.server.display()),
        ];
        if !self.of_clients {
            args.push("--tlsAllowConnectionsWithoutCertificates".to_owned());
        }
        args
    }

    /// Returns the options of a connection string.
    pub(crate) fn options(&self) -> String {
        let own = if self.of_clients {
            format!("&tlsCertificateKeyFile={}", self.server.display())
        } else {
            String::new()
        };
        format!("&tls=true&tlsCAFile={}{own}", self.authority.display())
    }
}

/// Returns the authority's certificate, and the servers' with its key.
fn pem() -> Result<(String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "watchlock testkit");
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;
    let mut server = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    server.distinguished_name.push(DnType::CommonName, "mongod");
    let server_key = KeyPair::generate()?;
    let issuer = Issuer::from_params(&authority, &authority_key);
    let server_certificate = server.signed_by(&server_key, &issuer)?;
    let server = server_certificate.pem() + &server_key.serialize_pem();
    Ok((authority_certificate.pem(), server))
}

/// Writes a file that nobody else may read, as it can contain a key.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}
