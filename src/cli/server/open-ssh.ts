import type { Config } from '../../config.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { RequestLimits } from '../../http/requests/request-limits.ts'
import { errorCodeOf } from '../../lib/error-code.ts'
import { startSshServer, type SshServer } from '../../ssh/server.ts'
import { printStatus } from '../print-status.ts'

/**
 * Starts the SSH server. Resolves with null if it is turned off. If its port is taken, the process runs without it and says so: several
 * server processes on one machine may have the same setting.
 */
export async function openSsh(
  deps: ControlDeps,
  config: Config,
  { rates, opened }: { readonly rates: RequestLimits['rates']; readonly opened: AsyncDisposableStack },
): Promise<SshServer | null> {
  if (config.sshPort === 0) return null
  const { host, sshPort: port } = config
  try {
    const server = opened.use(
      await startSshServer(deps, {
        host,
        port,
        connections: { capacity: config.connectionCapacity, perAddress: config.connectionsPerAddress },
        rates,
      }),
    )
    deps.log.info({ host, port: server.port, fingerprint: server.fingerprint }, 'the SSH server listens')
    return server
  } catch (error) {
    if (errorCodeOf(error) !== 'EADDRINUSE' && errorCodeOf(error) !== 'EACCES') throw error
    deps.log.warn({ error, host, port }, 'the SSH server can’t listen')
    printStatus(`SSH is off: port ${String(port)} can’t be used here. Set SANDYARD_SSH_PORT to another port, or to off`)
    return null
  }
}
