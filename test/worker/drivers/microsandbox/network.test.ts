import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeVmNetwork } from '../../../../src/worker/drivers/microsandbox/vm-network.ts'
import { networkWith } from '../../../support/networks.ts'

test('the runtime passes everything on to the router, whatever the policy, but what stays in its own process', () => {
  const closed = makeVmNetwork({ network: networkWith([]) })
  const open = makeVmNetwork({ network: networkWith([{ destination: 'any' }]) })
  assert.deepEqual(closed, open)
  assert.deepEqual(
    closed?.policy.rules.map(({ action, destination }) => [action, destination]),
    [
      ['deny', { group: 'loopback' }],
      ['deny', { group: 'host' }],
      ['deny', { group: 'host' }],
    ],
  )
  const dns = closed.policy.rules[1]?.ports.some(({ start, end }) => start <= 53 && 53 <= end)
  assert.equal(dns, false, 'the DNS of the gateway stays open')
})

test('a sandbox without a network gets none', () => {
  assert.equal(makeVmNetwork({ network: { ...networkWith([]), enabled: false } }), null)
})

test('the runtime listens once on each port of the guest, whatever ports of the machine lead to it', () => {
  const port = { host_bind: '127.0.0.1', host_port: 8_080, guest_port: 80, protocol: 'tcp' } as const
  const ports = [port, { ...port, host_port: 8_081 }, { ...port, protocol: 'udp' } as const]
  assert.deepEqual(makeVmNetwork({ network: { ...networkWith([]), ports } })?.ports, [
    { guest_port: 80, protocol: 'tcp' },
    { guest_port: 80, protocol: 'udp' },
  ])
})
