import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parsePreviewHost, previewUrl } from '../../../src/domain/previews/preview.ts'
import { makePreviewSites } from '../../../src/cli/server/preview-site.ts'
import { parsePreviewDomain } from '../../../src/settings/preview-domain.ts'

test('the name of a preview is a port and a slug beneath the domain, and everything else is refused or left to the API', () => {
  const domain = 'preview.example.com'
  const seen = { port: 3000, slug: 'quiet-otter' }
  for (const host of [
    '3000-quiet-otter.preview.example.com',
    '3000-QUIET-otter.Preview.example.com:8080',
    '3000-quiet-otter.preview.example.com.',
  ])
    assert.deepEqual(parsePreviewHost(host, domain), seen, host)
  for (const host of [
    '',
    'preview.example.com',
    'example.com',
    '127.0.0.1:80',
    'api.example.com',
    'xpreview.example.com',
    '[::1]:80',
  ])
    assert.equal(parsePreviewHost(host, domain), 'other', host)
  for (const name of [
    'a',
    '3000',
    '3000-',
    '-a',
    '03-abc',
    '65536-abc',
    '3000-a--b',
    '3000-a_b',
    'x.3000-abc',
    '3000-abc.x',
  ])
    assert.equal(parsePreviewHost(`${name}.${domain}`, domain), 'invalid', name)
})

test('the setting of the domain says how clients reach previews', () => {
  const urlOf = (text: string, transport: 'http' | 'https' = 'http'): string | undefined => {
    const parsed = parsePreviewDomain(text)
    assert.ok('value' in parsed, text)
    const sites = makePreviewSites({ previewDomain: parsed.value, advertiseUrl: 'https://api.example.org' }, transport)
    sites.listensOn(8080)
    const site = sites.site()
    return site === null ? undefined : previewUrl(site, { port: 3000, slug: 'abc' })
  }
  assert.equal(urlOf('localhost'), 'http://3000-abc.localhost:8080/')
  assert.equal(urlOf('localhost', 'https'), 'https://3000-abc.localhost:8080/')
  assert.equal(urlOf('https://Preview.example.com'), 'https://3000-abc.preview.example.com/')
  assert.equal(urlOf('http://p.example.com:81'), 'http://3000-abc.p.example.com:81/')
  assert.equal(urlOf('off'), undefined)
  assert.throws(() => urlOf('example.org'), /the API is at api\.example\.org/)
  for (const text of ['', '10.0.0.1', 'a b', 'ftp://x', 'x/y', 'x:0', 'x:70000'])
    assert.ok('accepted' in parsePreviewDomain(text), text)
})
