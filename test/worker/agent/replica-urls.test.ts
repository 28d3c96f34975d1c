import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeReplicaUrls } from '../../../src/worker/agent/replica-urls.ts'

const [GIVEN, A, B] = ['http://given:8080', 'http://a:8080', 'http://b:8080'] as const

test('the URL that a worker was given comes first, and newly named URLs replace earlier ones', () => {
  const urls = makeReplicaUrls(`${GIVEN}/`)
  assert.deepEqual([urls.all, urls.current, urls.untried], [[GIVEN], GIVEN, 0])
  urls.markAnswered(GIVEN, [A, GIVEN])
  assert.deepEqual([urls.all, urls.current], [[GIVEN, A], GIVEN])
  urls.markAnswered(GIVEN, [B])
  assert.deepEqual(urls.all, [GIVEN, B])
})

test('after failures the URLs are tried in turn, and a URL that answers stays current', () => {
  const urls = makeReplicaUrls(GIVEN)
  urls.markAnswered(GIVEN, [A, B])
  const tried = [GIVEN, A, B, GIVEN].map((url) => {
    assert.equal(urls.current, url)
    const { untried } = urls
    urls.markFailed(url)
    return untried
  })
  assert.deepEqual(tried, [2, 1, 0, 0])
  urls.markAnswered(A, [A, B])
  assert.deepEqual([urls.current, urls.untried], [A, 2])
})

test('a second failure of the same URL does not skip the next one', () => {
  const urls = makeReplicaUrls(GIVEN)
  urls.markAnswered(GIVEN, [A, B])
  urls.markFailed(GIVEN)
  urls.markFailed(GIVEN)
  assert.equal(urls.current, A)
})

test('a URL that is no longer named stays current until its first failure', () => {
  const urls = makeReplicaUrls(GIVEN)
  urls.markAnswered(GIVEN, [A, B])
  urls.markFailed(GIVEN)
  urls.markAnswered(A, [B])
  assert.deepEqual([urls.all, urls.current], [[GIVEN, B], A])
  urls.markFailed(A)
  assert.equal(urls.current, GIVEN)
})

test('a worker that joined by https accepts only https, and no worker accepts other schemes than http and https', () => {
  const urls = makeReplicaUrls('https://given')
  urls.markAnswered('https://given', ['http://a', 'https://b:8443', 'ftp://c', 'no URL'])
  assert.deepEqual(urls.all, ['https://given', 'https://b:8443'])
})

test('only a worker that was given a loopback URL accepts one', () => {
  const local = ['http://127.0.0.1:8080', 'http://localhost:8080', 'http://[::1]:8080']
  const urls = makeReplicaUrls(GIVEN)
  urls.markAnswered(GIVEN, [...local, A])
  assert.deepEqual(urls.all, [GIVEN, A])
  const beside = makeReplicaUrls('http://127.0.0.1:9090')
  beside.markAnswered('http://127.0.0.1:9090', local)
  assert.deepEqual(beside.all, ['http://127.0.0.1:9090', ...local])
})

test('however many URLs are named, a bounded number is kept', () => {
  const urls = makeReplicaUrls(GIVEN)
  urls.markAnswered(
    GIVEN,
    Array.from({ length: 1_000 }, (_, index) => `http://r${String(index)}`),
  )
  assert.equal(urls.all.length, 32)
})
