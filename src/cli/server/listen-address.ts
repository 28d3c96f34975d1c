import { once } from 'node:events'
import { createServer } from 'node:net'
import type { Config } from '../../config.ts'
import { hasErrorCode } from '../../lib/error-code.ts'

type ListenAddress = Pick<Config, 'host' | 'port'>

/**
 * Throws if the API can't listen on its address. A server calls it before it makes anything, so that a wrong port leaves no data
 * folder, database or network behind.
 */
export async function requireFreePort({ host, port }: ListenAddress): Promise<void> {
  if (port === 0) return
  const trial = createServer()
  try {
    trial.listen({ host, port })
    await once(trial, 'listening')
  } catch (error) {
    throw describeListenError(error, { host, port })
  }
  trial.close()
  await once(trial, 'close')
}

/** Replaces the operating system's error about the address by one that names the address and a remedy. */
export function describeListenError(error: unknown, { host, port }: ListenAddress): Error {
  const where = `${host}, port ${String(port)}`
  if (hasErrorCode(error, 'EADDRINUSE'))
    return new Error(`${where} is already in use: choose another port with --port or SANDYARD_PORT`, { cause: error })
  if (hasErrorCode(error, 'EACCES'))
    return new Error(`${where} needs root: start as root, or choose a port above 1023 with --port or SANDYARD_PORT`, {
      cause: error,
    })
  if (hasErrorCode(error, 'EADDRNOTAVAIL', 'ENOTFOUND'))
    return new Error(`${host} is no address of this machine: choose another with --host or SANDYARD_HOST`, {
      cause: error,
    })
  return new Error(`the API can't listen on ${where}`, { cause: error })
}
