import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { resetSocket } from '../../src/lib/reset-socket.ts'

/** What the proxy does with bytes: forward them (`pass`), or drop them without an error (`swallow`). */
export type ProxyMode = 'pass' | 'swallow'

/** A TCP proxy on loopback between a program and its database, which imitates network faults. */
export type FaultProxy = {
  readonly port: number
  /** Sets the mode for new bytes on all connections, and for new connections. */
  setMode(mode: ProxyMode): void
  /** Sets the additional delay of each direction. */
  setDelay(delayMs: number): void
  /** Resets all connections. Returns their number. */
  resetAll(): number
  /**
   * Makes the proxy lose answers. If bytes of a client contain this text, the proxy resets the connection when the
   * server answers, instead of forwarding the answer. `lost` counts these answers.
   */
  loseAnswersTo(text: string | null): void
  readonly lost: number
  close(): Promise<void>
}

type Link = { readonly client: Socket; readonly server: Socket; isAnswerLost: boolean }

/** Starts a proxy in front of `targetPort`. */
export async function startFaultProxy(targetPort: number): Promise<FaultProxy> {
  const links = new Set<Link>()
  let mode: ProxyMode = 'pass'
  let delayMs = 0
  let pattern: string | null = null
  let lost = 0

  const reset = (link: Link): void => {
    links.delete(link)
    resetSocket(link.client)
    resetSocket(link.server)
  }

  /**
   * Makes the function that passes on what one direction of a connection brings, after the delay. The order stays, also if the delay
   * becomes shorter meanwhile: bytes that overtake others are not what a network does.
   */
  const makeDirection = (): ((pass: () => void) => void) => {
    let last = Promise.resolve()
    let waiting = 0
    return (pass) => {
      const passNow = (): void => {
        if (mode === 'pass') pass()
      }
      if (delayMs === 0 && waiting === 0) return passNow()
      waiting += 1
      last = Promise.all([last, sleep(delayMs)]).then(() => {
        waiting -= 1
        passNow()
      })
    }
  }

  const listener = createServer({ noDelay: true, allowHalfOpen: true }, (client) => {
    const server = connect({ port: targetPort, host: '127.0.0.1', noDelay: true, allowHalfOpen: true })
    const link: Link = { client, server, isAnswerLost: false }
    links.add(link)
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      const inOrder = makeDirection()
      from.on('data', (bytes) => {
        if (from === client && pattern !== null && bytes.includes(pattern)) link.isAnswerLost = true
        if (from === server && link.isAnswerLost) {
          lost += 1
          return reset(link)
        }
        inOrder(() => {
          if (to.writable) to.write(bytes)
        })
      })
      from.on('error', () => to.destroy()) // a reset on one side is the end of the other
      from.on('end', () => {
        inOrder(() => to.end())
      })
      from.on('close', () => {
        if (mode === 'pass') to.destroy()
        links.delete(link)
      })
    }
  })
  await new Promise<void>((resolve) => {
    listener.listen(0, '127.0.0.1', resolve)
  })
  const address = listener.address()
  if (typeof address !== 'object' || address === null) throw new Error('the proxy listens nowhere')
  return {
    port: address.port,
    setMode(next) {
      mode = next
    },
    setDelay(next) {
      delayMs = next
    },
    resetAll() {
      const count = links.size
      for (const link of links) reset(link)
      return count
    },
    loseAnswersTo(text) {
      pattern = text
    },
    get lost() {
      return lost
    },
    async close() {
      for (const link of links) reset(link)
      await new Promise((resolve) => listener.close(resolve))
    },
  }
}
