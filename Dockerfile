# The command line `watchlock` in an image of its own. The checks in `.ci/run` do not build it.
#
#     docker build --tag watchlock .
#     docker run --rm --env MONGODB_URI watchlock ls
#
# The image has no shell and no other program, so `run` and `elect` find no command in it. The program is linked
# statically and works in any Linux image: copy it into the image of the command.
#
#     COPY --from=watchlock /usr/local/bin/watchlock /usr/local/bin/

# Alpine's C library is musl, which is linked statically.
FROM rust:1-alpine AS build
RUN apk add --no-cache musl-dev
WORKDIR /watchlock
COPY . .
RUN cargo install --locked --path cli --root /built

FROM scratch
COPY --from=build /built/bin/watchlock /usr/local/bin/watchlock
# It needs no privileges, and no account: TLS brings its root certificates along.
USER 65534:65534
ENTRYPOINT ["/usr/local/bin/watchlock"]
