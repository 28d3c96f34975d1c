import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'

/** How to reach the API server of a cluster, and as whom. */
export type ClusterAccess = {
  /** The base URL, `https://HOST:PORT`. */
  readonly server: string
  /** The certificate authority of the server, as PEM. Null: the authorities that Node trusts. */
  readonly ca: string | null
  /** The name that the server's certificate must have. Null: the host of `server`. */
  readonly serverName: string | null
  /** A client certificate and its key, as PEM. */
  readonly certificate: { readonly cert: string; readonly key: string } | null
  /** Reads the bearer token. It is read for each request, because Kubernetes replaces the tokens of service accounts. */
  readonly readToken: (() => Promise<string>) | null
  /** The namespace of the sandboxes, unless a setting names another. */
  readonly namespace: string
}

/** Where Kubernetes puts the credentials of a Pod. */
const SERVICE_ACCOUNT_FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'

type AccessInput = {
  /** The path of a kubeconfig in JSON. Null: the service account of this Pod. */
  readonly kubeconfig: string | null
  /** Where Kubernetes tells a Pod the address of the API server. */
  readonly env: { readonly host: string | undefined; readonly port: string | undefined }
  readonly folder?: string
}

/** Finds the cluster: by a kubeconfig, or from inside a Pod. Rejects with words that say what is missing. */
export async function readClusterAccess({
  kubeconfig,
  env,
  folder = SERVICE_ACCOUNT_FOLDER,
}: AccessInput): Promise<ClusterAccess> {
  if (kubeconfig !== null) return parseKubeconfig(await readFile(kubeconfig, 'utf8'), kubeconfig)
  if (env.host === undefined || env.port === undefined || !existsSync(`${folder}/token`))
    throw new Error(
      'no cluster: SANDYARD_KUBECONFIG names no kubeconfig, and this is no Pod with the token of a service account',
    )
  return {
    server: `https://${env.host.includes(':') ? `[${env.host}]` : env.host}:${env.port}`,
    ca: await readFile(`${folder}/ca.crt`, 'utf8'),
    serverName: null,
    certificate: null,
    readToken: async () => (await readFile(`${folder}/token`, 'utf8')).trim(),
    namespace: (await readFile(`${folder}/namespace`, 'utf8')).trim(),
  }
}

type Named<Key extends string, Content> = { readonly name: string } & { readonly [key in Key]: Content }
type Kubeconfig = {
  readonly 'current-context'?: string
  readonly contexts?: readonly Named<
    'context',
    { readonly cluster: string; readonly user: string; readonly namespace?: string }
  >[]
  readonly clusters?: readonly Named<'cluster', Readonly<Record<string, string | undefined>>>[]
  readonly users?: readonly Named<'user', Readonly<Record<string, unknown>>>[]
}

/** The fields of a user that run a program or are of an older kind. */
const OTHER_WAYS_IN = ['exec', 'auth-provider', 'username', 'password']

async function parseKubeconfig(text: string, path: string): Promise<ClusterAccess> {
  const config = parseJson(text, path)
  const refuse = (why: string): never => {
    throw new Error(`the kubeconfig ${path} ${why}`)
  }
  const found = config.contexts?.find(({ name }) => name === config['current-context'])
  const context = found?.context ?? refuse('has no current context')
  const cluster = config.clusters?.find(({ name }) => name === context.cluster)?.cluster ?? refuse('lacks its cluster')
  const user = config.users?.find(({ name }) => name === context.user)?.user ?? refuse('lacks its user')
  const other = OTHER_WAYS_IN.find((field) => user[field] !== undefined)
  if (other !== undefined) refuse(`signs in by '${other}'; give the user a token, a tokenFile or a client certificate`)
  const field = (name: string): string | null => (typeof user[name] === 'string' ? user[name] : null)
  const cert = await contentOf(field('client-certificate-data'), field('client-certificate'))
  const key = await contentOf(field('client-key-data'), field('client-key'))
  const { server = '' } = cluster
  if (!server.startsWith('https://')) refuse('names a server without https')
  if (cluster['insecure-skip-tls-verify'] !== undefined) refuse('turns off the check of the certificate')
  const [token, tokenFile] = [field('token'), field('tokenFile')]
  return {
    server: server.replace(/\/+$/, ''),
    ca: await contentOf(cluster['certificate-authority-data'] ?? null, cluster['certificate-authority'] ?? null),
    serverName: cluster['tls-server-name'] ?? null,
    certificate: cert === null || key === null ? null : { cert, key },
    readToken:
      tokenFile !== null
        ? async () => (await readFile(tokenFile, 'utf8')).trim()
        : token === null
          ? null
          : () => Promise.resolve(token),
    namespace: context.namespace ?? 'default',
  }
}

/** Parses the JSON form alone: a reader of YAML would be a dependency for this one file. */
function parseJson(text: string, path: string): Kubeconfig {
  try {
    const parsed: unknown = JSON.parse(text)
    return parsed as Kubeconfig // the fields are checked where they are read
  } catch (error) {
    throw new Error(
      `the kubeconfig ${path} is not JSON; make it with: kubectl config view --raw --minify --flatten -o json`,
      { cause: error },
    )
  }
}

async function contentOf(data: string | null, file: string | null): Promise<string | null> {
  if (data !== null) return Buffer.from(data, 'base64').toString('utf8')
  return file === null ? null : await readFile(file, 'utf8')
}
