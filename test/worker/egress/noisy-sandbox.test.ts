import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect as connectTcp } from 'node:net'
import { connect } from 'node:tls'
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
      const isNameServed = await Promise.all(names.map((name) => isServed(NOISY, name)))
      const served = names.filter((_, at) => isNameServed[at])
      assert.ok(served.length < names.length)
      await waitUntil(() => refused.length === names.length - served.length)
      for (const { sandbox, sni, reason } of refused) {
        assert.equal(sandbox, NOISY)
        assert.ok(sni !== null && !served.includes(sni))
        assert.equal(reason, 'the sandbox uses too many new server names')
      }
      assert.ok(await isServed(QUIET, 'quiet.test'))
    })

    async function isServed(localAddress: string, servername: string): Promise<boolean> {
      const socket = connect({ socket: connectTcp({ host: NOISY, port: EGRESS_PORT, localAddress }), servername, ca })
      try {
        await once(socket, 'secureConnect')
        return true
      } catch {
        return false
      } finally {
        socket.destroy()
      }
    }
  })
}
