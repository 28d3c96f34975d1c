import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findLabelRefusal } from '../../../src/domain/sandboxes/labels.ts'
import { startsOnSsh } from '../../../src/domain/sandboxes/ssh-start.ts'

test('only the label sandyard.ssh-start with true lets an SSH connection start a sandbox, and other words are refused', () => {
  const label = (value: string) => ({ 'sandyard.ssh-start': value })
  assert.equal(findLabelRefusal(label('yes'), 'labels')?.field, 'labels.sandyard.ssh-start')
  for (const value of ['true', 'false']) assert.equal(findLabelRefusal(label(value), 'labels'), null)
  assert.equal(startsOnSsh(JSON.stringify({ labels: label('true') })), true)
  for (const spec of [{ labels: label('false') }, { labels: {} }, {}])
    assert.equal(startsOnSsh(JSON.stringify(spec)), false)
})
