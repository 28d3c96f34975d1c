import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect as connectTcp } from 'node:net'
import { connect, type TLSSocket } from 'node:tls'
import { after, before, describe, test } from 'node:test'
import { makeAuthority } from '../../../src/lib/make-authority.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { EGRESS_PORT, type EgressRefusal } from '../../../src/worker/egress/messages.ts'
import { openEgress } from '../../../src/worker/egress/open-egress.ts'
import { interceptAll } from '../../support/intercept.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'
import { waitUntil } from '../../support/wait.ts'

/** The addresses of two sandboxes. Nothing redirects their connections here, so they connect to the egress process itself. */
const [NOISY, QUIET] = ['127.0.0.1', '127.0.0.2'] as const

if (isInOwnNetwork(import.meta.filename)) {
  describe('a sandbox that wants more than its share of the egress process', () => {
    const refused: (EgressRefusal & { readonly sandbox: string })[] = []
    const egress = openEgress({
      namespace: '/proc/self/ns/net',
      clock: systemClock,
      log: makeLog('silent'),
      onRefused: (sandbox, refusal) => refused.push({ sandbox, ...refusal }),
    })
    let ca: string

    before(async () => {
      const authority = await makeAuthority('Sandyard test', { nowMs: Date.now() })
      ca = authority.certificate
      const interception = interceptAll(authority, [EGRESS_PORT])
      const settings = { gateway: '127.0.0.1', egress: [], strict: false, secrets: [], interception }
      for (const address of [NOISY, QUIET]) await egress.set(address, settings)
    })
    after(() => egress.close())

    test('random server names are refused beyond a number, and those of another sandbox are served', async () => {
      const names = Array.from({ length: 1_000 }, (_, n) => `n${String(n)}.test`)
      const isNameServed = await inBatches(names, (name) => isServed(NOISY, name))
      const served = names.filter((_, at) => isNameServed[at])
      const others = await waitForRefused('the sandbox uses too many new server names')
      assert.ok(others.length > 0 && served.length + others.length <= names.length)
      for (const { sandbox, sni } of others) assert.ok(sandbox === NOISY && !served.includes(sni ?? ''))
      assert.ok(await isServed(QUIET, 'quiet.test'))
    })

    test('idle connections are refused beyond the memory of a sandbox, and those of another sandbox are served', async () => {
      using sockets = new DisposableStack()
      const open = (localAddress: string): Promise<boolean> => {
        const socket = connectAs(localAddress, 'quiet.test')
        sockets.defer(() => socket.destroy())
        return isConnected(socket)
      }
      const connected = await inBatches(Array.from({ length: 800 }), () => open(NOISY))
      const count = connected.filter(Boolean).length
      assert.ok(count > 400 && count < 800, String(count))
      const others = await waitForRefused('the connections of the sandbox keep too much memory')
      for (const { sandbox } of others) assert.equal(sandbox, NOISY)
      assert.ok(await open(QUIET))
    })

    /** Few at once: a client that is silent for a second is judged without its name. */
    async function inBatches<Item>(items: readonly Item[], work: (item: Item) => Promise<boolean>) {
      const results: boolean[] = []
      for (let at = 0; at < items.length; at += 25)
        results.push(...(await Promise.all(items.slice(at, at + 25).map(work))))
      return results
    }

    function waitForRefused(reason: string) {
      return waitUntil(() => {
        const found = refused.filter((refusal) => refusal.reason === reason)
        return found.length > 0 && found
      })
    }

    function connectAs(localAddress: string, servername: string): TLSSocket {
      return connect({ socket: connectTcp({ host: NOISY, port: EGRESS_PORT, localAddress }), servername, ca })
    }

    async function isConnected(socket: TLSSocket): Promise<boolean> {
      try {
        await once(socket, 'secureConnect')
        return true
      } catch {
        return false
      }
    }

    async function isServed(localAddress: string, servername: string): Promise<boolean> {
      const socket = connectAs(localAddress, servername)
      const connected = await isConnected(socket)
      socket.destroy()
      return connected
    }
  })
}
