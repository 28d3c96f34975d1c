import { computed, effect, signal } from '@preact/signals'
import { csrfToken, get, post, refusedSessions } from './api.ts'
import type { Session } from './types.ts'

/** `loading` until the server has answered; null: nobody is signed in. */
export const session = signal<Session | null | 'loading'>('loading')

const SCOPES = {
  viewer: ['read'],
  member: ['read', 'write'],
  admin: ['read', 'write', 'admin'],
  owner: ['read', 'write', 'admin'],
} as const

/** What the member may do here. The server decides; this only hides what it would refuse. */
export const scopes = computed<readonly string[]>(() =>
  session.value === null || session.value === 'loading' ? [] : SCOPES[session.value.role],
)
export const mayWrite = computed(() => scopes.value.includes('write'))
export const mayAdmin = computed(() => scopes.value.includes('admin'))

/** Asks the server who is signed in. */
export async function readSession(): Promise<void> {
  const found = await get<Session>('/auth/session').catch(() => null)
  csrfToken.value = found?.csrf_token ?? null
  session.value = found
}

/** Signs in with the token of a one-time link. */
export async function signInWithLink(token: string): Promise<void> {
  await post('/auth/link', { token })
  await readSession()
}

export async function chooseOrg(org_id: string): Promise<void> {
  await post('/auth/org', { org_id })
  location.assign('/')
}

export async function signOut(): Promise<void> {
  await post('/auth/sign-out')
  location.assign('/sign-in')
}

// A session that the server has ended sends everybody to the sign-in page.
effect(() => {
  if (refusedSessions.value > 0) session.value = null
})
