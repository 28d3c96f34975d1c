import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  canonicalReference,
  isLocalOnly,
  isLoopbackHost,
  manifestKey,
  parseImageReference,
  PUBLIC_HUB,
  registryUrl,
  type ImageReference,
} from '../../../src/domain/spec/image-reference.ts'

const DIGEST = `sha256:${'ab'.repeat(32)}`

function parsed(text: string, defaultRegistry = PUBLIC_HUB): ImageReference {
  const result = parseImageReference(text, defaultRegistry)
  assert.ok(result.ok, `'${text}' ${result.ok ? '' : result.problem}`)
  return result.reference
}

test('every usual way to write a reference has one canonical spelling', () => {
  const spellings: Readonly<Record<string, string>> = {
    python: `${PUBLIC_HUB}/library/python:latest`,
    'python:3.12-slim': `${PUBLIC_HUB}/library/python:3.12-slim`,
    'org/app': `${PUBLIC_HUB}/org/app:latest`,
    [`${PUBLIC_HUB}/python`]: `${PUBLIC_HUB}/library/python:latest`,
    'registry.example/a/b_c/d__e/f--g': 'registry.example/a/b_c/d__e/f--g:latest',
    'Registry.Example:5000/a:T': 'registry.example:5000/a:T',
    'host:5000/a/b:tag': 'host:5000/a/b:tag',
    '127.0.0.1:5000/a': '127.0.0.1:5000/a:latest',
    '[::1]:5000/a': '[::1]:5000/a:latest',
    'localhost/demo': 'localhost/demo:latest',
    'localhost:5000/demo': 'localhost:5000/demo:latest',
    [`a@${DIGEST}`]: `${PUBLIC_HUB}/library/a@${DIGEST}`,
    [`registry.example/a:1@${DIGEST}`]: `registry.example/a:1@${DIGEST}`,
  }
  for (const [text, canonical] of Object.entries(spellings)) assert.equal(canonicalReference(parsed(text)), canonical)
})

test('a reference without a host is in the default registry, and gets the prefix `library/` only in the public hub', () => {
  assert.equal(canonicalReference(parsed('python', 'registry.example:5000')), 'registry.example:5000/python:latest')
})

test('a digest decides what is pulled, even beside a tag', () => {
  assert.equal(manifestKey(parsed(`a:1@${DIGEST}`)), DIGEST)
  assert.equal(manifestKey(parsed('a:1')), '1')
})

test('plain HTTP is used only for registries on this machine, and never for `localhost` without a port', () => {
  assert.equal(registryUrl('127.0.0.1:5000'), 'http://127.0.0.1:5000')
  assert.equal(registryUrl('[::1]:5000'), 'http://[::1]:5000')
  assert.equal(registryUrl('registry.example:5000'), 'https://registry.example:5000')
  assert.equal(registryUrl(PUBLIC_HUB), `https://registry-1.${PUBLIC_HUB}`)
  for (const host of ['127.example.com', 'localhost.example', '10.0.0.1', '127.0.0.1.example'])
    assert.equal(isLoopbackHost(host), false, host)
  assert.equal(isLocalOnly(parsed('localhost/demo')), true)
  assert.equal(isLocalOnly(parsed('localhost:5000/demo')), false)
})

test('a reference outside the grammar is refused with an explanation', () => {
  const wrong = [
    '',
    'UPPER',
    'a b',
    'a:',
    'a:b:c',
    '/a',
    'a/',
    'a//b',
    '../a',
    'host:5000/',
    'host:99999/a',
    'host:0/a',
    'a@sha256:12',
    'a@md5:12',
    `a@${DIGEST}@${DIGEST}`,
    '.a',
    'a..b',
    'https://host.example/a',
    'user@host.example/a',
    '-host.example/a',
    'a:-t',
    `a:${'t'.repeat(129)}`,
    'x'.repeat(256),
    '[::1/a',
    'a\n',
    'host.example/a?b',
    'host.example/a#b',
    'a%2fb',
  ]
  for (const text of wrong) {
    const result = parseImageReference(text, PUBLIC_HUB)
    assert.equal(result.ok, false, JSON.stringify(text))
  }
})

test('parsing a canonical spelling gives the same reference again', () => {
  const word = fc.stringMatching(/^[a-z0-9]{1,8}([._-][a-z0-9]{1,8})?$/)
  const tag = fc.stringMatching(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}$/)
  const host = fc.constantFrom('', 'localhost/', 'registry.example/', '127.0.0.1:5000/')
  fc.assert(
    fc.property(
      host,
      fc.array(word, { minLength: 1, maxLength: 3 }),
      tag,
      fc.boolean(),
      (prefix, words, name, hasDigest) => {
        const reference = parsed(`${prefix}${words.join('/')}:${name}${hasDigest ? `@${DIGEST}` : ''}`)
        assert.deepEqual(parsed(canonicalReference(reference)), reference)
      },
    ),
  )
})

test('any text is either refused or has a canonical spelling that is safe in a URL', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const result = parseImageReference(text, PUBLIC_HUB)
      if (!result.ok) return
      const url = new URL(
        `/v2/${result.reference.repository}/manifests/${manifestKey(result.reference)}`,
        registryUrl(result.reference.registry),
      )
      assert.equal(url.pathname, `/v2/${result.reference.repository}/manifests/${manifestKey(result.reference)}`)
    }),
  )
})
