/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/report/html.h"

#include <math.h>
#include <string.h>

#include "gaugeblock.h"

static const char style[] =
    ":root{--fg:#1c2126;--dim:#5b6670;--bg:#fff;--line:#d5dade;--soft:#f3f5f7;--s0:#000;--s1:#0072b2;--s2:#56b4e9;"
    "--s3:#009e73;--s4:#e69f00;--s5:#cc79a7;--s6:#d55e00;--s7:#8a6d00}\n"
    "@media(prefers-color-scheme:dark){:root{--fg:#e6e9ec;--dim:#9aa5ae;--bg:#14181b;--line:#363d43;--soft:#1e2429;"
    "--s0:#fff;--s1:#4aa8e0;--s2:#8fd0f5;--s3:#35c79c;--s4:#f0b840;--s5:#e3a0c6;--s6:#f08040;--s7:#c8ab3c}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1240px;padding:0 16px 48px;color:var(--fg);background:var(--bg);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;overflow-wrap:anywhere}\n"
    "h1{font-size:1.6rem;margin:24px 0 4px}h2{font-size:1.3rem;margin:40px 0 8px;border-top:2px solid var(--fg);"
    "padding-top:12px}h3{font-size:1.05rem;margin:24px 0 8px}\n"
    "p,ul{max-width:76ch;margin:8px 0}li{margin:4px 0}.dim,figcaption small{color:var(--dim)}\n"
    "code{font-size:.85em;background:var(--soft);padding:1px 4px}\n"
    ".answers{background:var(--soft);border-left:4px solid var(--s1);padding:8px 16px 8px 28px;margin:12px 0}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:16px}\n"
    "figure{margin:0;min-width:0;max-width:600px;break-inside:avoid}figcaption{font-weight:600;font-size:.95rem}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:10px system-ui,sans-serif;fill:var(--fg)}\n"
    "svg .grid{stroke:var(--line);stroke-width:.6}svg .axis{stroke:var(--dim);stroke-width:1;fill:none}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;padding:0;list-style:none;font-size:.85rem;"
    "max-width:none;position:sticky;top:0;background:var(--bg);padding:6px 0;z-index:1}.legend svg{display:inline-block;width:30px;height:10px;margin-right:6px}\n"
    ".scroll{overflow-x:auto;margin:8px 0}\n"
    "table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;font-weight:600;padding:4px 0}\n"
    "th,td{padding:4px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}td.text{text-align:left;white-space:normal;min-width:9em;max-width:44ch}\n"
    "th{background:var(--soft);vertical-align:bottom}th button{all:unset;cursor:pointer;font-weight:600}\n"
    "th button:focus-visible{outline:2px solid var(--s1)}"
    "th[aria-sort=ascending] button::after{content:' \\25B2'}th[aria-sort=descending] button::after{content:' "
    "\\25BC'}\n"
    "details{margin:8px 0}summary{cursor:pointer;font-weight:600}\n"
    ".PASS{color:var(--s3)}.FAIL,.CRASH{color:var(--s6)}\n"
    "@media(max-width:600px){.legend{font-size:.72rem;gap:2px 10px}h1{font-size:1.35rem}}\n"
    "@media print{.legend{position:static}body{max-width:none;font-size:11pt}.scroll{overflow:visible}.charts{grid-template-columns:1fr 1fr}"
    "th,td{white-space:normal;padding:2px 6px}h2{break-after:avoid}}\n";

static const char script[] =
    "for(const h of document.querySelectorAll('th'))h.firstChild.onclick=()=>{const t=h.closest('table'),"
    "b=t.tBodies[0],i=h.cellIndex,up=h.getAttribute('aria-sort')!=='ascending';"
    "for(const o of t.querySelectorAll('th'))o.removeAttribute('aria-sort');"
    "h.setAttribute('aria-sort',up?'ascending':'descending');"
    "const v=r=>{const s=r.cells[i].textContent,n=parseFloat(s);return isNaN(n)?s:n};"
    "[...b.rows].sort((p,q)=>{const a=v(p),c=v(q),d=typeof a===typeof c?(a<c?-1:a>c?1:0):typeof a==='number'?-1:1;"
    "return up?d:-d}).forEach(r=>b.append(r))};"
    "addEventListener('beforeprint',()=>{for(const d of document.querySelectorAll('details'))d.open=true});\n";

void html_text(FILE *stream, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", stream);
            break;
        case '>':
            fputs("&gt;", stream);
            break;
        case '&':
            fputs("&amp;", stream);
            break;
        case '"':
            fputs("&quot;", stream);
            break;
        default: /* control characters, which XML has not, are told by a mark */
            fputc((unsigned char)*text < ' ' && *text != '\n' && *text != '\t' ? '?' : *text, stream);
        }
}

void html_begin(FILE *stream, const char *title)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline';"
          "script-src 'unsafe-inline'\">\n<title>",
          stream);
    html_text(stream, title);
    fprintf(stream, "</title>\n<style>\n%s</style></head>\n<body><h1>", style);
    html_text(stream, title);
    fputs("</h1>\n", stream);
}

void html_end(FILE *stream)
{
    fprintf(stream, "<p class=\"dim\">Written by gaugeblock " GB_VERSION ".</p>\n<script>\n%s</script></body></html>\n",
            script);
}

void html_table_begin(FILE *stream, const char *caption, const char *const *heads, int columns)
{
    fputs("<div class=\"scroll\" tabindex=\"0\"><table><caption>", stream);
    html_text(stream, caption);
    fputs("</caption><thead><tr>", stream);
    for (int i = 0; i < columns; i++) {
        fputs("<th scope=\"col\"><button>", stream);
        html_text(stream, heads[i]);
        fputs("</button></th>", stream);
    }
    fputs("</tr></thead><tbody>\n", stream);
}

/* Whether a cell begins as a number does. */
static bool is_number(const char *cell)
{
    return !*cell || strchr("0123456789-.", *cell) || !strncmp(cell, "inf", 3);
}

void html_row(FILE *stream, const char *const *cells, int columns)
{
    fputs("<tr>", stream);
    for (int i = 0; i < columns; i++) {
        fputs(is_number(cells[i]) ? "<td>" : "<td class=\"text\">", stream);
        html_text(stream, cells[i]);
        fputs("</td>", stream);
    }
    fputs("</tr>\n", stream);
}

void html_table_end(FILE *stream)
{
    fputs("</tbody></table></div>\n", stream);
}
