//! The guide: the pages of the folder `docs`, with their examples compiled.
//!
//! - Using locks: [`locks`], [`documents`], [`elections`], [`jobs`], [`fencing`]
//! - [What is promised](crate::guarantees), and [why it holds](why_it_holds)
//! - Running it: [`command_line`], [`operating`], [`scaling`], [`privileges`], [`bson`], [`measured`], [`evidence`],
//!   [`servers`], and [observability](crate::observability)
//! - Recipes: [`recipes`]
//! - Coming from another library: [`migrating`]

// Links of a page to other pages are paths of files. The first of two definitions of a link counts, so each page begins
// with the modules that stand for those files.
macro_rules! pages {
    ($($name:ident: $file:literal,)*) => {
        $(
            #[doc = include_str!("guide/links.md")]
            #[doc = ""]
            #[doc = include_str!(concat!("../docs/", $file))]
            pub mod $name {}
        )*
    };
}

pages! {
    locks: "locks.md",
    documents: "documents.md",
    elections: "elections.md",
    jobs: "jobs.md",
    fencing: "fencing.md",
    why_it_holds: "why-it-holds.md",
    command_line: "command-line.md",
    operating: "operating.md",
    scaling: "scaling.md",
    privileges: "privileges.md",
    bson: "bson.md",
    measured: "measured.md",
    evidence: "evidence.md",
    servers: "servers.md",
}

pub mod recipes {
    //! Recipes for services, and for the places where they run.

    pages! {
        web_service: "recipes/web-service.md",
        leader: "recipes/leader.md",
        outbox: "recipes/outbox.md",
        cron: "recipes/cron.md",
        opentelemetry: "recipes/opentelemetry.md",
        prometheus: "recipes/prometheus.md",
        kubernetes: "recipes/kubernetes.md",
        systemd: "recipes/systemd.md",
        atlas: "recipes/atlas.md",
    }
}

pub mod migrating {
    //! From other libraries: what surprises, how their calls map to watchlock's, and how to switch a running fleet.

    pages! {
        terms: "migrating/terms.md",
        fleet: "migrating/fleet.md",
        rust: "migrating/rust.md",
        shedlock: "migrating/shedlock.md",
        redisson: "migrating/redisson.md",
        dotnet: "migrating/dotnet.md",
        sharplock: "migrating/sharplock.md",
        flock: "migrating/flock.md",
        etcd: "migrating/etcd.md",
    }
}
