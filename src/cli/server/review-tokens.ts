import { readFile } from 'node:fs/promises'
import { request } from 'node:https'
import { text } from 'node:stream/consumers'
import type { ReviewToken } from '../../control/workers/worker-join.ts'

/** The audience of the tokens by which workers join: a token for another service, stolen or lent, is refused. */
const AUDIENCE = 'sandyard'
/** Where Kubernetes puts the credentials of a Pod. */
const FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'
const LIMIT_MS = 10_000

type ReviewInput = {
  /** The service accounts that may join, each as NAMESPACE/NAME. */
  readonly accounts: readonly string[]
  /** The API server: host and port. */
  readonly host: string
  readonly port: number
  /** The folder with `token` and `ca.crt` of this Pod. They are read for each review, because Kubernetes replaces them. */
  readonly folder?: string
}

/** The parts that are read of a TokenReview (authentication.k8s.io/v1). */
type TokenReview = {
  readonly status?: {
    readonly authenticated?: boolean
    readonly audiences?: readonly string[]
    readonly user?: { readonly username?: string; readonly extra?: Readonly<Record<string, readonly string[]>> }
  }
}

/**
 * Makes the function that asks the API server of Kubernetes whose token a joining worker has shown. Nothing is remembered: a join is
 * rare, and a deleted Pod's token must be refused at once.
 */
export function makeReviewToken({ accounts, host, port, folder = FOLDER }: ReviewInput): ReviewToken {
  const usernames = accounts.map((account) => `system:serviceaccount:${account.replace('/', ':')}`)
  return async (token) => {
    const [own, ca] = await Promise.all(['token', 'ca.crt'].map((name) => readFile(`${folder}/${name}`, 'utf8')))
    const review = {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token, audiences: [AUDIENCE] },
    }
    const { status } = await post({ host, port, ca: ca ?? '', token: (own ?? '').trim() }, review)
    const isKnown = status?.authenticated === true && status.audiences?.includes(AUDIENCE) === true
    const { username = '', extra = {} } = status?.user ?? {}
    if (!isKnown || !usernames.includes(username)) return null
    return { names: ['node-name', 'pod-name'].flatMap((name) => extra[`authentication.kubernetes.io/${name}`] ?? []) }
  }
}

type Server = { readonly host: string; readonly port: number; readonly ca: string; readonly token: string }

function post({ host, port, ca, token }: Server, review: object): Promise<TokenReview> {
  const body = JSON.stringify(review)
  return new Promise((resolve, reject) => {
    const asked = request({
      host,
      port,
      ca,
      method: 'POST',
      path: '/apis/authentication.k8s.io/v1/tokenreviews',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
      },
      signal: AbortSignal.timeout(LIMIT_MS),
    })
    asked.once('error', reject)
    asked.once('response', (reply) => {
      text(reply).then((answer) => {
        if (reply.statusCode === 201) resolve(JSON.parse(answer) as TokenReview)
        else
          reject(
            new Error(
              `the API server of Kubernetes answered a TokenReview with ${String(reply.statusCode)}: ${answer}`,
            ),
          )
      }, reject)
    })
    asked.end(body)
  })
}
