import assert from 'node:assert/strict'
import { test } from 'node:test'
import { connectionBound, describeConnectionBound } from '../../../src/worker/network/connection-bound.ts'

test('a sandbox has at most the setting, and at most a sixteenth of the connection table', () => {
  assert.deepEqual(connectionBound(4_096, 262_144), { connections: 4_096, newPerSecond: 205 })
  assert.deepEqual(connectionBound(4_096, null), { connections: 4_096, newPerSecond: 205 })
  assert.deepEqual(connectionBound(4_096, 16_384), { connections: 1_024, newPerSecond: 52 })
  assert.match(
    describeConnectionBound(4_096, 262_144),
    /^4096 for each sandbox, 205 new ones .* nf_conntrack_max is 262144$/,
  )
  assert.match(describeConnectionBound(4_096, 16_384), /^1024 .*, less than SANDYARD_CONNECTIONS_PER_SANDBOX \(4096\)/)
})
