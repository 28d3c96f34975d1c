import { createServer } from 'node:net'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'

/** The first port tried. Outgoing connections get ports from 32768 on (ip(7), ip_local_port_range). */
const FIRST = 20_000
const COUNT = 12_000
const TRIES = 100

/**
 * Finds a port of loopback on which nobody listens. The kernel gives it to no outgoing connection, so a server that
 * listens on it still finds it free after a restart.
 */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < TRIES; tries += 1) {
    const port = FIRST + randomBelow(systemRandom, COUNT)
    if (await isFree(port)) return port
  }
  throw new Error(`no free port was found in ${String(TRIES)} tries`)
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer()
  const listens = await new Promise<boolean>((resolve) => {
    server.once('error', () => {
      resolve(false)
    })
    server.listen(port, '127.0.0.1', () => {
      resolve(true)
    })
  })
  if (listens) await new Promise((resolve) => server.close(resolve))
  return listens
}
