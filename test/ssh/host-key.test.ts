import assert from 'node:assert/strict'
import { test } from 'node:test'
import ssh2 from 'ssh2'
import { makeHostKey } from '../../src/ssh/server.ts'

test('every host key that is made can be read again', () => {
  for (let n = 0; n < 1_000; n++) assert.ok(!(ssh2.utils.parseKey(makeHostKey().private) instanceof Error))
})
