import assert from 'node:assert/strict'
import { Socket } from 'node:net'
import { test } from 'node:test'
import { makeDnsClients } from '../../../../src/worker/network/dns/dns-clients.ts'

test('a sandbox with many connections to the DNS forwarder loses its own oldest, and never those of another', () => {
  const clients = makeDnsClients({ perSource: 3, inAll: 5 })
  const open = (source: string): Socket => {
    const socket = new Socket()
    clients.add(source, socket)
    return socket
  }
  const other = open('other')
  const many = ['many', 'many', 'many', 'many'].map(open)
  assert.deepEqual(
    many.map(({ destroyed }) => destroyed),
    [true, false, false, false],
    'its own limit',
  )
  const others = [open('other'), open('third')]
  assert.deepEqual(
    [...many, other, ...others].map(({ destroyed }) => destroyed),
    [true, true, false, false, false, false, false],
    'the limit of all',
  )
  clients.close()
  assert.ok([...many, other, ...others].every(({ destroyed }) => destroyed))
})
