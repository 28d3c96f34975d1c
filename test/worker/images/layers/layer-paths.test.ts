/** The worker resolves the names of a layer on its only thread, so their number of steps is bounded, whatever symlinks a layer has. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeLayerPaths } from '../../../../src/worker/images/layers/layer-paths.ts'

const REFUSED = { reason: 'image' }

test('a symlink with a target of more than 4,096 bytes is refused', () => {
  const paths = makeLayerPaths()
  paths.addSymlink('long', './'.repeat(2_048))
  assert.equal(paths.resolve('long/file'), 'file')
  assert.throws(() => {
    paths.addSymlink('longer', `${'./'.repeat(2_048)}a`)
  }, REFUSED)
})

test('names that long symlinks make long are refused in total, however many short names came before', () => {
  const paths = makeLayerPaths()
  for (let at = 0; at < 10_000; at++) paths.addOther(paths.resolve(`usr/file${String(at)}`))
  for (let at = 0; at < 39; at++) paths.addSymlink(`s${String(at)}`, `${'x/../'.repeat(800)}s${String(at + 1)}`)
  const resolved: string[] = []
  assert.throws(() => {
    for (let at = 0; at < 100; at++) resolved.push(paths.resolve(`s0/file${String(at)}`))
  }, REFUSED)
  assert.deepEqual(resolved, ['s39/file0'])
})

test('a layer may have any number of names below ordinary symlinks', () => {
  const paths = makeLayerPaths()
  for (const name of ['bin', 'lib', 'sbin']) paths.addSymlink(name, `usr/${name}`)
  for (let at = 0; at < 50_000; at++) {
    const name = `a/b/c/d/e/f/file${String(at)}`
    assert.equal(paths.resolve(`lib/${name}`), `usr/lib/${name}`)
  }
})
