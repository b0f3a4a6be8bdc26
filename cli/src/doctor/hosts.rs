//! The reason why there is no server to work with, found by asking every host of the connection string by itself.
//!
//! The driver says only that it found no primary. So each host is asked who it is, without a replica set and without a
//! user.

use std::time::Duration;

use futures::future::join_all;
use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind},
    options::{ClientOptions, ServerAddress, Tls},
};

use super::{Check, Status, topology};
use crate::{
    connection::{Connection, hello},
    exit::Failure,
    text::plain,
};

/// Limits the hosts that are asked: they are all of one set, and more lines would say no more.
const HOSTS_MOST: usize = 7;

/// Maximum time for one host to say who it is. All of it passes where a host does not, as the driver tries again.
const ANSWERED: Duration = Duration::from_secs(3);

/// Maximum number of characters that are shown of a reason in the words of others.
const REASON_MOST: usize = 200;

/// A finding about a host, and the next step.
type Trouble = (String, String);

/// Returns why there is no server to work with.
pub(super) async fn unusable(connection: &Connection, failure: &Failure) -> Vec<Check> {
    let Ok(options) = connection.options().await else {
        let advice = "correct the host in the connection string (mongodb+srv:// takes the name of a whole cluster), or the name \
                      service of this machine";
        return vec![problem((failure.message().to_owned(), advice.to_owned()))];
    };
    if !failure.is_unavailable() {
        return vec![problem(not_let_in(&options, failure))];
    }
    let hosts = &options.hosts[..options.hosts.len().min(HOSTS_MOST)];
    let seen = join_all(hosts.iter().map(|host| look_at(&options, host.clone()))).await;
    let answers: Vec<&Document> = seen.iter().filter_map(|seen| seen.as_ref().ok()).collect();
    if answers.is_empty() {
        return seen.into_iter().filter_map(Result::err).map(problem).collect();
    }
    let asked = options.repl_set_name.as_deref();
    let is_direct = options.direct_connection == Some(true);
    let unfit = answers
        .iter()
        .find_map(|hello| topology::unfit(hello, asked, is_direct));
    let found = match unfit {
        Some(unfit) => Some(unfit),
        None => members(&options, &answers).await,
    };
    vec![problem(found.unwrap_or_else(|| by_the_driver(failure)))]
}

fn problem((found, advice): Trouble) -> Check {
    Check::new("server", Status::Problem, found).advice(advice)
}

fn by_the_driver(failure: &Failure) -> Trouble {
    if failure.message().contains("Server selection timeout") {
        let found = "the servers answer one by one, and yet no primary was found in time";
        let advice = "try again: there may have been an election; serverSelectionTimeoutMS in the connection string sets the \
                      time, and a slow network needs more of it";
        return (found.to_owned(), advice.to_owned());
    }
    let advice = "the server says who it is, so see whether it hangs, stops or changes its primary (its log, its disk, \
                  rs.status()), and check the connection string";
    (failure.message().to_owned(), advice.to_owned())
}

fn not_let_in(options: &ClientOptions, failure: &Failure) -> Trouble {
    let credential = options.credential.as_ref();
    let user = credential.and_then(|credential| credential.username.as_deref());
    let source = credential.and_then(|credential| credential.source.as_deref());
    let source = source.or(options.default_database.as_deref()).unwrap_or("admin");
    let advice = format!(
        "check user{} and password (characters like : / ? # @ % must be percent-encoded), and the database in which the \
         user was created: it is taken to be `{}`, and authSource names another",
        user.map(|user| format!(" `{}`", plain(user))).unwrap_or_default(),
        plain(source)
    );
    (failure.message().to_owned(), advice)
}

/// Asks one host who it is.
async fn look_at(options: &ClientOptions, host: ServerAddress) -> Result<Document, Trouble> {
    let asked = hello(options, host.clone(), options.tls.clone(), ANSWERED).await;
    asked.map_err(|error| trouble(&plain(&host.to_string()), of_the_server(&error).as_deref(), options))
}

/// Returns the reason why the one server of a client can't be used, in the words of the driver, of the system or of the TLS
/// library; `None` if nothing came from it.
fn of_the_server(error: &Error) -> Option<String> {
    let text = match &*error.kind {
        // The driver describes all servers that it knows: here it is one.
        ErrorKind::ServerSelection { message, .. } => {
            message.split_once("Error: Kind: ")?.1.split(", labels: ").next()?
        }
        _ => &error.kind.to_string(),
    };
    let text = text.split('{').next().unwrap_or_default();
    let text = text.strip_prefix("I/O error: ").unwrap_or(text);
    Some(text.chars().take(REASON_MOST).collect())
}

/// Describes a host that did not say who it is.
fn trouble(place: &str, why: Option<&str>, options: &ClientOptions) -> Trouble {
    let why = why.unwrap_or("timed out");
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let is_closed = says(&["end of file", "eof", "close", "reset", "corrupt"]);
    let with_tls = matches!(options.tls, Some(Tls::Enabled(_)));
    let (found, advice) = if says(&["timed out"]) {
        (
            format!("{place} does not answer"),
            "check the address, whether a firewall or an access list drops connections from this machine, and whether the \
             server hangs (its log, its disk, a stopped process)",
        )
    } else if says(&["Connection refused"]) {
        (
            format!("{place} refuses connections: nothing listens there"),
            "start the server, or correct the host and the port in the connection string",
        )
    } else if says(&["lookup address", "Name or service not known", "nodename nor servname"]) {
        (
            format!("{place} has no address: the name can't be looked up"),
            "correct the host in the connection string, or the name service of this machine",
        )
    } else if with_tls && says(&["ertificate", "NotValidForName", "ssuer", "ostname mismatch", "xpired"]) {
        (
            format!("the certificate of {place} is not accepted: {}", plain(why)),
            "name the server in the connection string as its certificate does, and the file with the certificate of its \
             authority by tlsCAFile=FILE; if it has expired or is not valid yet, renew it, or set the clock of this machine",
        )
    } else if with_tls && (is_closed || says(&["alert"])) {
        (
            format!("{place} breaks off the TLS handshake"),
            "remove tls=true if the server does not use TLS (--tlsMode); if it asks for a certificate of the client, name \
             its file: tlsCertificateKeyFile=FILE in the connection string; else see its log",
        )
    } else if is_closed {
        (
            format!("{place} closes every connection"),
            "if the server requires TLS, add tls=true to the connection string, and tlsCAFile=FILE with the certificate of \
             its authority; else see whether the port belongs to a MongoDB server, whether that has room for more \
             connections (maxIncomingConnections), and its log",
        )
    } else {
        (
            format!("{place} can't be used: {}", plain(why)),
            "check the address in the connection string, what listens there, and the network between this machine and it",
        )
    };
    (found, advice.to_owned())
}

/// Looks at the other members that a set names: the driver goes by these names, not by those in the connection string.
async fn members(options: &ClientOptions, answers: &[&Document]) -> Option<Trouble> {
    let hello = answers.iter().find(|hello| hello.contains_key("setName"))?;
    let set = plain(hello.get_str("setName").unwrap_or_default());
    let named: Vec<&str> = ["hosts", "passives", "arbiters"]
        .iter()
        .flat_map(|field| hello.get_array(field).into_iter().flatten())
        .filter_map(Bson::as_str)
        .collect();
    let primary = answers.iter().find_map(|hello| hello.get_str("primary").ok());
    let wanted: Vec<&str> = match primary {
        Some(primary) => vec![primary],
        None => named.iter().copied().take(HOSTS_MOST).collect(),
    };
    let looked = join_all(wanted.iter().map(async |name| {
        let host = ServerAddress::parse(name).ok()?;
        look_at(options, host).await.err()
    }));
    let silent: Vec<String> = looked.await.into_iter().flatten().map(|(found, _)| found).collect();
    let reasons = silent.join("; ");
    if let Some(primary) = primary {
        let found = format!(
            "the replica set `{set}` names its primary {}, which can't be used from here: {reasons}",
            plain(primary)
        );
        let advice = "clients go by the names in rs.conf(): they must be known, and reachable, on this machine too";
        return (!silent.is_empty()).then(|| (found, advice.to_owned()));
    }
    let found = format!(
        "the replica set `{set}` has no primary: {} of the {} members that it names can't be used{}",
        silent.len(),
        named.len(),
        if silent.is_empty() {
            String::new()
        } else {
            format!(": {reasons}")
        }
    );
    let advice = "a primary takes a majority of the members: start those that are down; rs.status() at one that answers \
                  says more";
    Some((found, advice.to_owned()))
}
