import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import {
  CHANNEL_ENDS,
  CHANNEL_ENDS_TEXT,
  channelEndOfWorkerCode,
} from '../../../src/contract/sandboxes/channel-ends.ts'

test('every end of a channel is in the documentation and in openapi.json, and its reason fits a close frame', () => {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/channels.md'), 'utf8').replaceAll(/ +/g, ' ')
  for (const [why, { code, reason }] of Object.entries(CHANNEL_ENDS)) {
    assert.ok(page.includes(`| ${String(code)} | ${reason} | \`${why}\` |`), why)
    assert.ok(CHANNEL_ENDS_TEXT.includes(reason), why)
    assert.ok(Buffer.byteLength(reason) <= 123, `${why}: RFC 6455, 5.5`)
  }
})

test('every close code that a worker sends means one end of a channel, and any other code means a lost worker', () => {
  const ends = ['agent_done', 'client_broke_framing', 'channel_failed', 'worker_closing'] as const
  for (const end of ends) assert.equal(channelEndOfWorkerCode(CHANNEL_ENDS[end].code), end)
  assert.equal(channelEndOfWorkerCode(1006), 'worker_lost')
})
