//! The process from which a connection over loopback comes.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the process that has the socket with this local port on 127.0.0.1, if `/proc` shows it.
///
/// The socket lives as long as its connection. So the side that accepted the connection finds the process, unless that
/// has just ended or closed it.
pub(crate) fn of_port(port: u16) -> Option<u32> {
    let sockets = fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{port:04X}");
    // "sl local_address rem_address st tx:rx tr:when retransmit uid timeout inode ...". A socket that waits out its
    // end shares the port, and belongs to nobody: its inode is 0.
    let inode = sockets.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let inode = (fields.nth(1)? == local).then(|| fields.nth(7))??;
        (inode != "0").then_some(inode)
    })?;
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        has_open(&process.path(), &link).then_some(pid)
    })
}

fn has_open(process: &Path, link: &Path) -> bool {
    // The processes of other users can't be read, and are skipped.
    fs::read_dir(process.join("fd")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|target| target == link))
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_told_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = connection.local_addr().unwrap().port();
        assert_eq!(of_port(port), Some(std::process::id()));
        drop(connection);
        assert_eq!(of_port(port), None);
    }
}
