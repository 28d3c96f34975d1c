import type { Commands } from '../../lib/run-command.ts'

const TIMEOUT_MS = 10_000

/**
 * Lets a sandbox listen on every port and ping. Its network namespace is the host's, so its own user 0 has no power
 * over it: `CAP_NET_BIND_SERVICE` and `CAP_NET_RAW` mean nothing there (user_namespaces(7)). It takes two processes, so
 * namespaces that are made ahead get it ahead. May be repeated.
 */
export async function openPorts(commands: Commands, netnsPath: string): Promise<void> {
  const settings = [
    'echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start',
    'echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range',
  ]
  await commands.run('nsenter', [`--net=${netnsPath}`, '/bin/sh', '-c', settings.join(' && ')], {
    timeoutMs: TIMEOUT_MS,
  })
}
