import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findLabelRefusal } from '../../../src/domain/sandboxes/labels.ts'
import { allowsSsh, SSH_LABELS } from '../../../src/domain/sandboxes/ssh-labels.ts'

test('only a label with true allows an SSH connection something, and other words are refused', () => {
  for (const what of ['start', 'agent'] as const) {
    const name = SSH_LABELS[what]
    const label = (value: string) => ({ [name]: value })
    assert.equal(findLabelRefusal(label('yes'), 'labels')?.field, `labels.${name}`)
    for (const value of ['true', 'false']) assert.equal(findLabelRefusal(label(value), 'labels'), null)
    assert.equal(allowsSsh(what, JSON.stringify({ labels: label('true') })), true)
    for (const spec of [{ labels: label('false') }, { labels: {} }, {}])
      assert.equal(allowsSsh(what, JSON.stringify(spec)), false)
  }
})
