import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'

type PageProps = {
  readonly title: string
  readonly heading?: ComponentChildren
  readonly lead?: ComponentChildren
  readonly actions?: ComponentChildren
  readonly children: ComponentChildren
}

/** A page: its title, what it is for, what can be done, and its content. */
export function Page({ title, heading = title, lead, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Sandyard`
  }, [title])
  return (
    <>
      <header class="page-head">
        <div>
          <h1>{heading}</h1>
          {lead === undefined ? null : <p class="lead">{lead}</p>}
        </div>
        <div class="actions">{actions}</div>
      </header>
      {children}
    </>
  )
}

/** What a page shows that has nothing to show yet: what would be here, and how to begin. */
export function Empty({ title, children }: { readonly title: string; readonly children: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  )
}

/** A part of a page with a heading. */
export function Section({
  title,
  actions,
  children,
}: {
  readonly title: string
  readonly actions?: ComponentChildren
  readonly children: ComponentChildren
}) {
  return (
    <section class="panel">
      <header>
        <h2>{title}</h2>
        <div class="actions">{actions}</div>
      </header>
      {children}
    </section>
  )
}
