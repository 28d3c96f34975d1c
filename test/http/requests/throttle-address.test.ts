import assert from 'node:assert/strict'
import { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import { test } from 'node:test'
import { makeAddressThrottle } from '../../../src/http/requests/throttle-address.ts'
import { waitUntil } from '../../support/wait.ts'

const ATTACKER = '10.0.0.1'

function makeWorld() {
  const addresses = new Map<IncomingMessage, string>()
  const throttle = makeAddressThrottle({ of: (request) => addresses.get(request) })
  const requestOf = (address: string): IncomingMessage => {
    const request = new IncomingMessage(new Socket())
    addresses.set(request, address)
    return request
  }
  return { throttle, requestOf }
}

test('an address is served two requests at once, the others wait without a refusal, and another address is not affected', async () => {
  const { throttle, requestOf } = makeWorld()
  const held = Promise.withResolvers<void>()
  const begun: string[] = []
  const ask = (address: string, name: string): Promise<string | null> =>
    throttle(requestOf(address), async () => {
      begun.push(name)
      if (address === ATTACKER) await held.promise
      return name
    })
  const asked = ['a', 'b', 'c', 'd'].map((name) => ask(ATTACKER, name))
  assert.equal(await ask('10.0.0.2', 'other'), 'other')
  assert.deepEqual(begun.toSorted(), ['a', 'b', 'other'])
  held.resolve()
  assert.deepEqual(await Promise.all(asked), ['a', 'b', 'c', 'd'])
})

test('a request that fails lets the next one of its address in, and one whose client is gone is not served', async () => {
  const { throttle, requestOf } = makeWorld()
  const fail = (): Promise<never> => Promise.reject(new Error('not ready'))
  const failing = [1, 2].map(() => throttle(requestOf(ATTACKER), fail))
  const gone = requestOf(ATTACKER)
  let isServed = false
  const abandoned = throttle(gone, () => Promise.resolve((isServed = true)))
  gone.socket.destroy()
  let isNextServed = false
  void throttle(requestOf(ATTACKER), () => Promise.resolve((isNextServed = true)))
  assert.deepEqual((await Promise.allSettled(failing)).map(({ status }) => status), ['rejected', 'rejected']) // prettier-ignore
  await waitUntil(() => isNextServed)
  assert.deepEqual([await abandoned, isServed], [null, false])
})
